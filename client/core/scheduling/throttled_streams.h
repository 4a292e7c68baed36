// The streams for which the worker accepts no more work for now, because it holds too many of their operations.
//
// Only threads with work for such a stream wait. Other threads go on, because the held operations may wait for work
// that those threads have yet to send. If all streams are throttled, the worker queues every command until a driver
// call that waits for the GPU has returned (server/worker/scheduling/waiting_calls.h). Then every call that would not
// wait for a reply waits here. Changes of executable graphs, which wait for launches in the worker, are treated as if
// each executable were a stream (changes_of()).
//
// Ownership: keys only.
// Threads: any. While no stream is throttled, a check is one relaxed load.
// Errors: set() returns false.
#pragma once

#include <atomic>
#include <set>

#include "client/core/scheduling/captures.h"
#include "common/mutex.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

class ThrottledStreams {
  public:
    // a limit, because a faulty server could name streams that do not exist
    static constexpr std::size_t kMax = 64u << 10;

    static constexpr StreamKey changes_of(std::uint64_t executable) {
        return {codec::kThrottledGraphChanges, executable};
    }

    [[nodiscard]] bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
    [[nodiscard]] bool all() const { return all_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool contains(const StreamKey& stream) const;
    // False if too many streams are throttled.
    [[nodiscard]] bool set(const StreamKey& stream, bool throttled);
    void set_all(bool throttled);
    // Waits until the stream is not throttled, or the session has ended.
    void wait(const StreamKey& stream);
    // Waits until not all streams are throttled, or the session has ended.
    void wait_for_all();
    // The session has ended.
    void end();

  private:
    mutable Mutex mutex_;
    Condition changed_;
    std::set<StreamKey> streams_ GP_GUARDED_BY(mutex_);
    std::atomic<bool> all_{false};
    std::atomic<std::size_t> count_{0};  // size of streams_, plus one if all are throttled
    bool ended_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
