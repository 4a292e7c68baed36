#include "common/hash.h"

#include <fmt/format.h>

// Inlined, so that no library is needed at link or run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gpupool {

struct Fingerprinter::State {
    XXH3_state_t xxh3;
};

Fingerprint fingerprint(std::span<const std::byte> bytes) noexcept {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return {hash.low64, hash.high64};
}

std::string to_string(const Fingerprint& fingerprint) {
    return fmt::format("{:016x}{:016x}", fingerprint.high, fingerprint.low);
}

Fingerprinter::Fingerprinter() : state_(std::make_unique<State>()) {
    XXH3_128bits_reset(&state_->xxh3);
}
Fingerprinter::~Fingerprinter() = default;

void Fingerprinter::add(std::span<const std::byte> bytes) noexcept {
    XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

Fingerprint Fingerprinter::result() const noexcept {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
    return {hash.low64, hash.high64};
}

}  // namespace gpupool
