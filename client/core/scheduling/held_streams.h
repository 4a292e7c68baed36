// The streams for which the worker wants no more work now: what it holds for them is as much as it takes.
//
// Only who has work for such a stream waits: what it waits for may have to come from another stream's caller. Where it
// is every stream, the worker sets all aside until a call has waited for the GPU
// (server/worker/scheduling/waiting_calls.h): then whoever would send without waiting for a reply waits here. Changes
// of executable graphs, which wait for launches in the worker, are held as if each executable were a stream
// (changes_of()).
//
// Threads: any. Errors: set() says false. While no stream is held, a check is one relaxed load.
#pragma once

#include <atomic>
#include <set>

#include "client/core/scheduling/captures.h"
#include "common/mutex.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

class HeldStreams {
  public:
    static constexpr std::size_t kMax = 64u << 10;  // a server can name streams that are none

    static constexpr StreamKey changes_of(std::uint64_t executable) { return {codec::kHoldsGraphChanges, executable}; }

    [[nodiscard]] bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
    [[nodiscard]] bool all() const { return all_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool contains(const StreamKey& stream) const;
    // False: that is one too many.
    [[nodiscard]] bool set(const StreamKey& stream, bool held);
    void set_all(bool held);
    // Until it is held no more, or the session has ended.
    void wait(const StreamKey& stream);
    // The same of all of them.
    void wait_for_all();
    // The session has ended.
    void end();

  private:
    mutable Mutex mutex_;
    Condition changed_;
    std::set<StreamKey> streams_ GP_GUARDED_BY(mutex_);
    std::atomic<bool> all_{false};
    std::atomic<std::size_t> count_{0};  // of streams_, and one for all of them
    bool ended_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
