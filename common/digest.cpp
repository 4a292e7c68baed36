#include "common/digest.h"

#include <sha2.h>  // libmd: small, static, nothing else behind it

#include <cstdint>

namespace gpupool {

struct Digester::State {
    SHA2_CTX sha;
};

Digester::Digester() : state_(std::make_unique<State>()) {
    SHA256Init(&state_->sha);
}
Digester::~Digester() = default;

void Digester::add(std::span<const std::byte> bytes) noexcept {
    SHA256Update(&state_->sha, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
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
