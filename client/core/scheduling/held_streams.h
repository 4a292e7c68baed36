// The streams for which the worker accepts no more work for now, because its queue of held operations is full.
//
// Only threads with work for such a stream wait. Other streams go on, because they may have to send what the held work
// waits for. If all streams are held, the worker queues every command until a driver call that waits for the GPU has
// returned (server/worker/scheduling/waiting_calls.h). Then every call that would not wait for a reply waits here.
// Changes of executable graphs, which wait for launches in the worker, are treated as if each executable were a stream
// (changes_of()).
//
// Ownership: keys only.
// Threads: any. While no stream is held, a check is one relaxed load.
// Errors: set() returns false.
#pragma once

#include <atomic>
#include <set>

#include "client/core/scheduling/captures.h"
#include "common/mutex.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

class HeldStreams {
  public:
    // a limit, because a faulty server could name streams that do not exist
    static constexpr std::size_t kMax = 64u << 10;

    static constexpr StreamKey changes_of(std::uint64_t executable) { return {codec::kHoldsGraphChanges, executable}; }

    [[nodiscard]] bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
    [[nodiscard]] bool all() const { return all_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool contains(const StreamKey& stream) const;
    // False if too many streams are held.
    [[nodiscard]] bool set(const StreamKey& stream, bool held);
    void set_all(bool held);
    // Waits until the stream is not held, or the session has ended.
    void wait(const StreamKey& stream);
    // Waits until not all streams are held, or the session has ended.
    void wait_for_all();
    // The session has ended.
    void end();

  private:
    mutable Mutex mutex_;
    Condition changed_;
    std::set<StreamKey> streams_ GP_GUARDED_BY(mutex_);
    std::atomic<bool> all_{false};
    std::atomic<std::size_t> count_{0};  // size of streams_, plus one if all are held
    bool ended_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
