#include "common/digest.h"

// The low-level functions, deprecated but there in every 1.1 and 3.x: EVP would bring OpenSSL's providers and their
// start-up into the client library.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

namespace gpupool {

static_assert(std::tuple_size_v<Digest> == SHA256_DIGEST_LENGTH);

struct Digester::State {
    SHA256_CTX sha;
};

Digester::Digester() : state_(std::make_unique<State>()) {
    SHA256_Init(&state_->sha);
}
Digester::~Digester() = default;

void Digester::add(std::span<const std::byte> bytes) noexcept {
    SHA256_Update(&state_->sha, bytes.data(), bytes.size());
}

Digest Digester::finish() noexcept {
    Digest digest;
    SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &state_->sha);
    return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
    Digester digester;
    digester.add(bytes);
    return digester.finish();
}

std::string to_string(const Digest& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (const std::byte byte : digest) {
        text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
        text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
    }
    return text;
}

}  // namespace gpupool
