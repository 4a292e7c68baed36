// SHA-256, for keys that must hold against a tenant who wants a collision: what one session stores under such a key may
// be handed to another that names the same key.
//
// Ownership: values. Threads: any; one Digester belongs to one thread. Errors: none.
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

// The same over pieces.
class Digester {
  public:
    Digester();
    ~Digester();
    Digester(const Digester&) = delete;
    Digester& operator=(const Digester&) = delete;

    void add(std::span<const std::byte> bytes) noexcept;
    // Once, at the end.
    Digest finish() noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool
