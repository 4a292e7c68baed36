// Keeps apart what waits for each other by way of the driver: calls of ours that wait for the GPU (to unregister
// memory), and GPU work that waits for a word of ours (a host function's, a graph's turn). The driver lets nobody in
// while the one waits, the dispatcher neither; and so the word would never be written.
//
// A call begins when no word is waited for, and work that would wait for one is held while a call is under way or wants
// to be. What is waited for already comes to its end by itself, since all that it depends on was issued before it.
//
// Threads: the dispatcher's. Errors: none.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "server/worker/helpers.h"

namespace gpupool::worker {

class GpuWaits {
  public:
    explicit GpuWaits(Helpers& helpers) : helpers_(helpers) {}

    // `call` on a helper thread when it may, then `done` here.
    void run(std::function<void()> call, std::function<void()> done) {
        waiting_.emplace_back(std::move(call), std::move(done));
    }
    // May the GPU be given work that waits for a word?
    [[nodiscard]] bool may_wait_for_word() const { return waiting_.empty() && running_ == 0; }
    // True when anything moved.
    bool poll(bool word_is_awaited) {
        if (waiting_.empty() || word_is_awaited) {
            return false;
        }
        for (auto& [call, done] : std::exchange(waiting_, {})) {
            ++running_;
            helpers_.run(std::move(call), [this, then = std::move(done)] {
                --running_;
                then();
            });
        }
        return true;
    }

  private:
    Helpers& helpers_;
    std::deque<std::pair<std::function<void()>, std::function<void()>>> waiting_;
    std::size_t running_ = 0;
};

}  // namespace gpupool::worker
