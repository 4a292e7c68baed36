// The encoding of changes to memory that two processes keep alike without sharing it (mirrored host memory).
//
// Each side keeps a baseline: the content that both sides last agreed on. Bytes that differ from it were written by
// this side (the program, or the GPU) since. Only these bytes are sent and only these are written on the other side, so
// that both sides may write different bytes of one block at the same time, as they may natively.
//
// Record: ChangeHeader; a mask with a bit for each byte of the window; the bytes whose bit is set.
//
// Threads: none of its own. Other threads may write the memory meanwhile: every byte is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "protocol/calls/members.h"

namespace gpupool::codec {

struct ChangeHeader {
    std::uint64_t address;        // of the window's first byte, a multiple of 8
    std::uint32_t window_bytes;   // a multiple of 8
    std::uint32_t changed_bytes;  // number of bytes after the mask
};
GP_MEMBERS(ChangeHeader, address, window_bytes, changed_bytes);

// Memory that both sides keep alike. `address` is its address in the program; `memory` has the same alignment.
struct SharedBlock {
    std::uint64_t address = 0;
    std::byte* memory = nullptr;
    std::byte* baseline = nullptr;
    std::size_t bytes = 0;
};

inline constexpr std::size_t kChangeWindowBytes = 4096;

// Storage for a baseline. Zero-filled; takes physical memory only where it was written. data() is null if the
// allocation failed.
class Baseline {
  public:
    Baseline() = default;
    explicit Baseline(std::size_t bytes);
    ~Baseline();
    Baseline(Baseline&& other) noexcept;
    Baseline& operator=(Baseline&& other) noexcept;
    [[nodiscard]] std::byte* data() const { return data_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Calls `emit` with a record for each part of `block` that differs from its baseline, and updates the baseline.
void find_changes(const SharedBlock& block, const std::function<void(std::span<const std::byte>)>& emit);

// Writes the record's bytes into the block that `find(address)` returns and into its baseline. False if the record is
// malformed or does not lie in the block (or `find` returned null).
bool apply_changes(std::span<const std::byte> record, const std::function<const SharedBlock*(std::uint64_t)>& find);

}  // namespace gpupool::codec
