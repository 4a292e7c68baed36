// Content hashes.
//
// `fingerprint` (XXH3, 128 bits) is fast but not safe against attackers: use it only as a key for data that one party
// wrote itself. Where a tenant could profit from a collision with another tenant's data, use common/digest (SHA-256).
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace gpupool {

struct Fingerprint {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Fingerprint&) const = default;
    auto operator<=>(const Fingerprint&) const = default;
};

Fingerprint fingerprint(std::span<const std::byte> bytes) noexcept;

// 32 hexadecimal digits, most significant first.
std::string to_string(const Fingerprint& fingerprint);

}  // namespace gpupool

template <>
struct std::hash<gpupool::Fingerprint> {
    std::size_t operator()(const gpupool::Fingerprint& value) const noexcept { return value.low; }
};
