#include "protocol/export_tables/md2.h"

#include <algorithm>
#include <cstring>

namespace gpupool::client::export_tables {
namespace {

// MD2's substitution table (RFC 1319, section 3.2).
constexpr std::uint8_t kSubstitution[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199,
    115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,
    138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122, 169, 104,
    121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,
    53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,
    170, 198, 79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,
    100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,
    97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193,
    171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,
    80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

constexpr int kRounds = 18;

}  // namespace

void Md2::absorb(const std::uint8_t* block) noexcept {
    std::uint8_t last = checksum_[kMd2BlockBytes - 1];
    for (std::size_t i = 0; i < kMd2BlockBytes; ++i) {
        checksum_[i] ^= kSubstitution[block[i] ^ last];
        last = checksum_[i];
        state_[kMd2BlockBytes + i] = block[i];
        state_[2 * kMd2BlockBytes + i] = block[i] ^ state_[i];
    }
    std::uint8_t mixed = 0;
    for (int round = 0; round < kRounds; ++round) {
        for (std::uint8_t& byte : state_) {
            mixed = byte ^= kSubstitution[mixed];
        }
        mixed = static_cast<std::uint8_t>(mixed + round);
    }
}

void Md2::add(std::span<const std::uint8_t> bytes) noexcept {
    for (const std::uint8_t byte : bytes) {
        buffer_[buffered_bytes_++] = byte;
        if (buffered_bytes_ == buffer_.size()) {
            absorb(buffer_.data());
            buffered_bytes_ = 0;
        }
    }
}

Md2Digest Md2::finish() noexcept {
    const std::size_t padding_bytes = kMd2BlockBytes - buffered_bytes_;
    Md2Digest padding;
    padding.fill(static_cast<std::uint8_t>(padding_bytes));
    add(std::span(padding).first(padding_bytes));
    // The checksum is a block of its own, and changes while it is absorbed.
    const auto checksum = checksum_;
    absorb(checksum.data());
    Md2Digest digest;
    std::copy_n(state_.begin(), digest.size(), digest.begin());
    return digest;
}

Md2Digest hmac_md2(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message) noexcept {
    constexpr std::uint8_t kInnerPad = 0x36;
    constexpr std::uint8_t kOuterPad = 0x5C;
    Md2Digest padded_key{};
    if (key.size() > padded_key.size()) {
        Md2 hashed;
        hashed.add(key);
        padded_key = hashed.finish();
    } else {
        std::copy(key.begin(), key.end(), padded_key.begin());
    }
    Md2Digest inner_key = padded_key;
    Md2Digest outer_key = padded_key;
    for (std::uint8_t& byte : inner_key) {
        byte ^= kInnerPad;
    }
    for (std::uint8_t& byte : outer_key) {
        byte ^= kOuterPad;
    }
    Md2 inner;
    inner.add(inner_key);
    inner.add(message);
    Md2 outer;
    outer.add(outer_key);
    outer.add(inner.finish());
    return outer.finish();
}

}  // namespace gpupool::client::export_tables
