// What changed in a piece of memory that two processes share without sharing it, as it travels.
//
// Each side keeps a baseline, the content that both sides last agreed on. What differs from it is what this side (the
// program, or the GPU) has written since; only these bytes travel and only these are written on the other side, so
// that both may write different bytes of one block at the same time, as they may natively.
//
// Record: ChangeHeader; a mask with a bit for each byte of the window; the bytes whose bit is set.
//
// Threads: none of its own. The memory may be written by others meanwhile: every byte is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace gpupool::codec {

struct ChangeHeader {
    std::uint64_t address;        // of the window's first byte, a multiple of 8
    std::uint32_t window_bytes;   // a multiple of 8
    std::uint32_t changed_bytes;  // that follow the mask
};

// Memory that is kept alike on both sides. `address` is what the program calls it; `memory` is aligned as it is.
struct SharedBlock {
    std::uint64_t address = 0;
    std::byte* memory = nullptr;
    std::byte* baseline = nullptr;
    std::size_t bytes = 0;
};

inline constexpr std::size_t kChangeWindowBytes = 4096;

// Zeros to begin with, which take memory only where something else was written. data() is null where there is no
// memory.
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

// Calls `emit` with a record for each part of `block` that differs from its baseline, which then is as the memory was.
void find_changes(const SharedBlock& block, const std::function<void(std::span<const std::byte>)>& emit);

// Writes the record's bytes into the memory of `find(address, bytes)` and its baseline. False: the record is malformed,
// or lies in no block (`find` gave one that does not hold the window's changed bytes).
bool apply_changes(std::span<const std::byte> record, const std::function<const SharedBlock*(std::uint64_t)>& find);

}  // namespace gpupool::codec
