// The session's contexts as the client knows them.
//
// A context's state is never freed and its handle never reused, so that a stale handle is recognised. Primary contexts
// have their handle from the start, active or not.
//
// Threads: any; the fields that change are atomic or guarded by the registry's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct ContextState {
    CUcontext handle = nullptr;
    std::uint64_t id = 0;  // cuCtxGetId
    CUdevice device = 0;
    bool primary = false;
    std::atomic<unsigned> flags{0};
    std::atomic<bool> live{false};
    std::atomic<CUresult> lost{CUDA_SUCCESS};  // the sticky error that every later call gives
    unsigned references = 0;                   // of a primary context; guarded by Contexts::primary_mutex
    // Streams that the legacy stream does not wait for: there was one, or a thread's own default stream was used.
    std::atomic<bool> unordered_streams{false};
    std::atomic<std::uint64_t> complete_until{0};  // work of commands below this number is known to be complete
    std::atomic<unsigned> attached{1};             // cuCtxAttach, cuCtxDetach
    // Limits as the driver said them, by CUlimit: they change only when one is set. kUnknownLimit: not asked yet.
    static constexpr std::size_t kUnknownLimit = ~std::size_t{0};
    std::array<std::atomic<std::size_t>, CU_LIMIT_MAX> limits;

    ContextState() { forget_limits(); }
    void forget_limits() {
        for (std::atomic<std::size_t>& limit : limits) {
            limit.store(kUnknownLimit, std::memory_order_relaxed);
        }
    }
};

class Contexts {
  public:
    void make_primaries(int device_count);

    ContextState& primary(CUdevice device) { return *primaries_[static_cast<std::size_t>(device)]; }
    // Null for anything that is not a context of this session.
    ContextState* find(CUcontext handle) const;
    ContextState& add(CUdevice device, unsigned flags, bool primary);
    // Is there more than one, of which a primary context may not be alive yet?
    [[nodiscard]] bool several() const { return count_.load(std::memory_order_relaxed) > 1; }
    // For each that is alive, without a lock.
    template <class Visit>
    void each_live(Visit visit) {
        for (std::size_t i = 0; ContextState* const context = at(i); ++i) {
            if (context->live) {
                visit(*context);
            }
        }
    }

    Mutex primary_mutex;  // held while a primary context is being made or ended

  private:
    [[nodiscard]] ContextState* at(std::size_t index) {  // null behind the last
        const SharedLock lock(mutex_);
        return index < states_.size() ? &states_[index] : nullptr;
    }
    mutable SharedMutex mutex_;
    std::deque<ContextState> states_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUcontext, ContextState*> by_handle_ GP_GUARDED_BY(mutex_);
    std::vector<ContextState*> primaries_;
    std::uint64_t next_serial_ GP_GUARDED_BY(mutex_) = 1;
    std::atomic<std::size_t> count_{0};  // of states_
};

// Does this error end its context for good?
bool is_sticky(CUresult result) noexcept;

}  // namespace gpupool::client
