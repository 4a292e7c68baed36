// Which of the pieces 1, 2, 3, ... have landed, where they come over several connections in any order.
//
// Kept as runs, so it is as small as the number of holes: at most what is on its way at a time. A peer that makes more
// holes than any that means well is refused.
//
// Ownership: values. Threads: none of its own. Errors: add() says false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace gpupool::wire {

class Landed {
  public:
    static constexpr std::size_t kMaxHoles = 16u << 10;

    // False for 0, for a piece that has landed already, and for one hole too many.
    [[nodiscard]] bool add(std::uint64_t number);

    // All pieces up to this one have landed.
    [[nodiscard]] std::uint64_t up_to() const noexcept { return up_to_; }

  private:
    std::uint64_t up_to_ = 0;
    std::map<std::uint64_t, std::uint64_t> runs_;  // beyond up_to_ + 1: first -> last, never adjacent
};

}  // namespace gpupool::wire
