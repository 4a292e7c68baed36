// Tracks which of the pieces 1, 2, 3, ... have landed, if they arrive over several connections in any order.
//
// Stored as runs, so its size is the number of gaps, at most the number of pieces under way at a time. A peer that
// causes more gaps than any well-behaved one is refused.
//
// Ownership: values. Threads: none of its own. Errors: add() returns false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace gpupool::wire {

class Landed {
  public:
    static constexpr std::size_t kMaxHoles = 16u << 10;

    // False for 0, for a piece that has landed already, and if there are too many gaps.
    [[nodiscard]] bool add(std::uint64_t number);

    // All pieces up to this one have landed.
    [[nodiscard]] std::uint64_t up_to() const noexcept { return up_to_; }

  private:
    std::uint64_t up_to_ = 0;
    std::map<std::uint64_t, std::uint64_t> runs_;  // beyond up_to_ + 1: first -> last, never adjacent
};

}  // namespace gpupool::wire
