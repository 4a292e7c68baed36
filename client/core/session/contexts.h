// The session's contexts as the client knows them.
//
// A context's state is never freed and its handle never reused, so a stale handle is recognised. A primary context has
// its handle from the start, whether it is active or not.
//
// Ownership: owns the states, until the process ends.
// Threads: any; fields that change are atomic.
// Errors: none.
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
    // Of a green context: its device's primary context, to which all objects belong that are made in it, except
    // streams. The context stands for both the program's CUgreenCtx and its CUcontext.
    ContextState* parent = nullptr;
    std::uint32_t multiprocessors = 0;  // of a green context: how many it has
    std::atomic<unsigned> flags{0};
    std::atomic<bool> live{false};
    std::atomic<CUresult> lost{CUDA_SUCCESS};  // the sticky error that every later call returns
    // Has there been a stream that the legacy stream does not wait for: a non-blocking one, or a thread's default
    // stream?
    std::atomic<bool> unordered_streams{false};
    // Streams of this context and its green ones, and the most for which the server has room.
    std::atomic<std::size_t> streams{0}, streams_reserved{0};
    std::atomic<std::uint64_t> complete_until{0};  // the work of all commands up to this number is complete
    std::atomic<unsigned> attached{1};             // cuCtxAttach, cuCtxDetach
    // The driver's limits by CUlimit. They change only when the program sets one. kUnknownLimit: not queried yet.
    static constexpr std::size_t kUnknownLimit = ~std::size_t{0};
    std::array<std::atomic<std::size_t>, CU_LIMIT_MAX> limits;

    ContextState() { forget_limits(); }
    [[nodiscard]] bool green() const { return parent != nullptr; }
    [[nodiscard]] ContextState& owner() { return parent != nullptr ? *parent : *this; }
    [[nodiscard]] const ContextState& owner() const { return parent != nullptr ? *parent : *this; }
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
    // Null if the handle is not a context of this session.
    ContextState* find(CUcontext handle) const;
    ContextState& add(CUdevice device, unsigned flags, bool primary);
    ContextState& add_green(ContextState& primary);
    // Is there more than one? Counts primary contexts that are not active.
    [[nodiscard]] bool several() const { return count_.load(std::memory_order_relaxed) > 1; }
    // Calls `visit` for each live context, without holding a lock.
    template <class Visit>
    void each_live(Visit visit) {
        for (std::size_t i = 0; ContextState* const context = at(i); ++i) {
            if (context->live) {
                visit(*context);
            }
        }
    }

    Mutex primary_mutex;  // held while a primary context is made or ended
    std::vector<unsigned> primary_references GP_GUARDED_BY(primary_mutex);  // by device: retained minus released
    std::vector<unsigned> primary_greens GP_GUARDED_BY(primary_mutex);      // how many of them green contexts have

  private:
    [[nodiscard]] ContextState* at(std::size_t index) {  // null after the last one
        const SharedLock lock(mutex_);
        return index < states_.size() ? &states_[index] : nullptr;
    }
    mutable SharedMutex mutex_;
    std::deque<ContextState> states_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUcontext, ContextState*> by_handle_ GP_GUARDED_BY(mutex_);
    // By device. Written only by make_primaries(), before other threads know the session.
    std::vector<ContextState*> primaries_;
    std::uint64_t next_serial_ GP_GUARDED_BY(mutex_) = 1;
    std::atomic<std::size_t> count_{0};  // size of states_
};

// Does this error make its context unusable?
bool is_sticky(CUresult result) noexcept;

}  // namespace gpupool::client
