// SHA-256, for keys that must resist collisions made on purpose: what one session stores under such a key may be given
// to another session of the same tenant that names the key.
//
// Ownership: values. Threads: any; a Digester is used by one thread at a time. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace gpupool {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> bytes);

// 64 hexadecimal digits.
std::string to_string(const Digest& digest);

// SHA-256 of data that arrives in pieces.
class Digester {
  public:
    Digester();
    ~Digester();
    Digester(const Digester&) = delete;
    Digester& operator=(const Digester&) = delete;

    void add(std::span<const std::byte> bytes) noexcept;
    // Ends the digest: the Digester must not be used afterwards.
    Digest finish() noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool
