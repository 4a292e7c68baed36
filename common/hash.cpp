#include "common/hash.h"

#include <fmt/format.h>

// Inlined, so that no library is needed at link or run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gpupool {

Fingerprint fingerprint(std::span<const std::byte> bytes) noexcept {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return {hash.low64, hash.high64};
}

std::string to_string(const Fingerprint& fingerprint) {
    return fmt::format("{:016x}{:016x}", fingerprint.high, fingerprint.low);
}

}  // namespace gpupool
