// Which sizes of blocks came one after the other, and which comes next: where a program repeats itself, as one does
// that loads the layers of a model, what follows is what followed the last time that the same sizes came before.
//
// Threads: one at a time. Memory: of kMax sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpupool::client {

class SizeHistory {
  public:
    static constexpr std::size_t kMax = 512;
    // So many sizes have to have come before in the same order; of several places the one with the most counts.
    static constexpr std::size_t kLeastAlike = 2, kMaxAlike = 16;

    void note(std::uint64_t bytes) {
        sizes_.push_back(bytes);
        if (sizes_.size() > kMax) {
            sizes_.pop_front();
        }
    }
    void forget() { sizes_.clear(); }

    // 0: it cannot be said.
    [[nodiscard]] std::uint64_t next() const {
        std::uint64_t next = 0;
        std::size_t most_alike = kLeastAlike - 1;
        for (std::size_t end = sizes_.empty() ? 0 : sizes_.size() - 1; end-- != 0;) {  // from the newest
            if (const std::size_t alike = alike_until(end); alike > most_alike) {
                most_alike = alike;
                next = sizes_[end + 1];
            }
        }
        return next;
    }

  private:
    // How many sizes until `end` are the same as the last ones.
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
