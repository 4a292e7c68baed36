#include "common/digest.h"

#include <sha2.h>  // libmd: small, static, nothing else behind it

#include <cstdint>

#include "common/sha256_blocks.h"

namespace gpupool {
namespace {

constexpr std::size_t kBlockBytes = SHA256_BLOCK_LENGTH;

const std::uint8_t* as_bytes(const std::byte* bytes) {
    return reinterpret_cast<const std::uint8_t*>(bytes);
}

}  // namespace

struct Digester::State {
    SHA2_CTX sha;
    std::size_t part_bytes = 0;  // of a block that is not whole yet, with libmd
};

Digester::Digester() : state_(std::make_unique<State>()) {
    SHA256Init(&state_->sha);
}
Digester::~Digester() = default;

void Digester::add(std::span<const std::byte> bytes) noexcept {
    static const bool in_hardware = sha256_in_hardware();
    State& state = *state_;
    // Whole blocks by the processor's own instructions; libmd takes the rest, and ends it.
    if (in_hardware && bytes.size() >= 2 * kBlockBytes) {
        if (state.part_bytes != 0) {
            const std::size_t missing = kBlockBytes - state.part_bytes;
            SHA256Update(&state.sha, as_bytes(bytes.data()), missing);
            bytes = bytes.subspan(missing);
            state.part_bytes = 0;
        }
        const std::size_t blocks = bytes.size() / kBlockBytes;
        sha256_blocks(state.sha.state.st32, bytes.data(), blocks);
        state.sha.bitcount[0] += std::uint64_t{blocks} * kBlockBytes * 8;
        bytes = bytes.subspan(blocks * kBlockBytes);
    }
    SHA256Update(&state.sha, as_bytes(bytes.data()), bytes.size());
    state.part_bytes = (state.part_bytes + bytes.size()) % kBlockBytes;
}

Digest Digester::finish() noexcept {
    Digest digest;
    SHA256Final(reinterpret_cast<std::uint8_t*>(digest.data()), &state_->sha);
    return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
    Digester digester;
    digester.add(bytes);
    return digester.finish();
}

std::string to_string(const Digest& digest) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (const std::byte byte : digest) {
        text.push_back(digits[std::to_integer<unsigned>(byte) >> 4]);
        text.push_back(digits[std::to_integer<unsigned>(byte) & 15]);
    }
    return text;
}

}  // namespace gpupool
