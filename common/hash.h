// Content hashes.
//
// `fingerprint` (XXH3, 128 bits) is fast and collides by accident never, on purpose easily: a key for what one party
// wrote itself. Where one tenant could profit from another's collision, the key must come from common/digest (SHA-256).
//
// Ownership: values. Threads: any; one Fingerprinter belongs to one thread. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

// 32 hexadecimal digits, the usual way round.
std::string to_string(const Fingerprint& fingerprint);

// The same over pieces: the result depends on the bytes alone, not on how they were cut.
class Fingerprinter {
  public:
    Fingerprinter();
    ~Fingerprinter();
    Fingerprinter(const Fingerprinter&) = delete;
    Fingerprinter& operator=(const Fingerprinter&) = delete;

    void add(std::span<const std::byte> bytes) noexcept;
    Fingerprint result() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool

template <>
struct std::hash<gpupool::Fingerprint> {
    std::size_t operator()(const gpupool::Fingerprint& value) const noexcept { return value.low; }
};
