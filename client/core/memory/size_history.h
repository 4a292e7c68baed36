// Predicts the next size of a sequence of allocations. A program that repeats itself, such as one that loads the layers
// of a model, allocates the same sizes in the same order. So the prediction is the size that followed the longest
// earlier match of the latest sizes.
//
// Ownership: the last kMax sizes.
// Threads: one at a time.
// Errors: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpupool::client {

class SizeHistory {
  public:
    static constexpr std::size_t kMax = 512;
    // A match needs at least kLeastAlike sizes. The longest match counts, up to kMaxAlike sizes; of equals the latest.
    static constexpr std::size_t kLeastAlike = 2, kMaxAlike = 16;

    void note(std::uint64_t bytes) {
        sizes_.push_back(bytes);
        if (sizes_.size() > kMax) {
            sizes_.pop_front();
        }
    }
    void forget() { sizes_.clear(); }

    // 0: unknown.
    [[nodiscard]] std::uint64_t next() const {
        std::uint64_t next = 0;
        std::size_t most_alike = kLeastAlike - 1;
        for (std::size_t end = sizes_.empty() ? 0 : sizes_.size() - 1; end-- != 0;) {  // newest first
            if (const std::size_t alike = alike_until(end); alike > most_alike) {
                most_alike = alike;
                next = sizes_[end + 1];
            }
        }
        return next;
    }

  private:
    // How many sizes up to `end` equal the latest ones.
    [[nodiscard]] std::size_t alike_until(std::size_t end) const {
        const std::size_t most = std::min(end + 1, kMaxAlike);
        std::size_t alike = 0;
        while (alike < most && sizes_[end - alike] == sizes_[sizes_.size() - 1 - alike]) {
            ++alike;
        }
        return alike;
    }

    std::deque<std::uint64_t> sizes_;
};

}  // namespace gpupool::client
