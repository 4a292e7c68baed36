// MD2 (RFC 1319) and HMAC over it (RFC 2104), which libcudart's integrity check uses. Not for security purposes.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpupool::client::export_tables {

constexpr std::size_t kMd2BlockBytes = 16;
using Md2Digest = std::array<std::uint8_t, kMd2BlockBytes>;

class Md2 {
  public:
    void add(std::span<const std::uint8_t> bytes) noexcept;
    // Call once, at the end.
    Md2Digest finish() noexcept;

  private:
    void absorb(const std::uint8_t* block) noexcept;

    std::array<std::uint8_t, 3 * kMd2BlockBytes> state_{};
    std::array<std::uint8_t, kMd2BlockBytes> checksum_{};
    std::array<std::uint8_t, kMd2BlockBytes> buffer_{};
    std::size_t buffered_bytes_ = 0;
};

// Keys longer than a block are hashed first, as RFC 2104 specifies.
Md2Digest hmac_md2(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message) noexcept;

}  // namespace gpupool::client::export_tables
