// Stream-ordered memory (cuMemAllocAsync) of a device's default pool, from the device's heap.
//
// What was freed in a stream comes behind all work of that stream, so the same stream may have it again at once; others
// only when the GPU has come so far. That is known after a synchronization, and from fences: marks in a stream, set
// every so many frees, that say by themselves when they were passed. So a call needs no round trip but where the heap
// has to grow.
//
// As in the driver's pools, memory that is complete and not in use goes back to the device at once, unless the release
// threshold lets the pool keep it.
//
// Times are numbers of commands: what was freed at `t` is complete when all work of commands up to `t` is.
//
// Threads: any. Errors: the heap's; out of memory may be for memory that is freed but not complete: wait, call
// complete() and release(), try again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/core/memory/device_heap.h"
#include "client/core/scheduling/captures.h"
#include "common/mutex.h"

namespace gpupool::client {

class StreamPool {
  public:
    // Has the GPU come to the fence? Cheap, without a round trip.
    using Passed = std::function<bool()>;
    // Sets a fence behind what was sent to the stream; may wait, and is called without the pool's lock.
    using SetFence = std::function<Passed()>;

    // Between two fences of a stream at most.
    static constexpr std::size_t kBlocksPerFence = 32;
    static constexpr std::uint64_t kBytesPerFence = 32u << 20;

    struct Usage {
        std::uint64_t used_bytes = 0, used_high_bytes = 0;
        std::uint64_t reserved_bytes = 0, reserved_high_bytes = 0;  // with what is freed and not given back
    };

    explicit StreamPool(DeviceHeap& heap) : heap_(heap) {}

    CUresult allocate(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address);
    struct Where {
        StreamKey stream;
        const ContextState* context;
    };
    // In stream order, when the session had sent `now` commands. False for what is not this pool's. Without `fence`
    // only a synchronization completes it.
    bool free(std::uint64_t address, const Where& where, std::uint64_t now, const SetFence& fence);
    [[nodiscard]] bool holds(std::uint64_t address) const;
    // The program's block of the heap is one of this pool's from here on, to be freed in stream order.
    void adopt(std::uint64_t address, std::uint64_t bytes);
    // Nothing uses it any more.
    bool free_complete(std::uint64_t address);

    // Work of commands before `command` is complete, in the stream or in all of the context.
    void complete(const StreamKey& stream, std::uint64_t command);
    void complete(const ContextState& context, std::uint64_t command);
    // The context has ended, and its work with it.
    void end(const ContextState& context);
    // Gives back what is complete and unused, but for `keep_bytes` of the pool's reserve.
    void release(std::uint64_t keep_bytes);

    void set_release_threshold(std::uint64_t bytes);
    [[nodiscard]] Usage usage() const;
    void reset_high(bool used, bool reserved);
    // Complete and unused, in this pool's keeping.
    [[nodiscard]] std::uint64_t kept_bytes() const;
    // Whether a synchronization has anything to tell.
    [[nodiscard]] bool any_freed() const { return freed_count_.load(std::memory_order_relaxed) != 0; }

  private:
    using Place = std::pair<std::uint64_t, std::uint64_t>;  // bytes, address
    struct Fence {
        std::uint64_t set_at;
        Passed passed;
    };
    struct Stream {
        using allocator_type = std::pmr::polymorphic_allocator<>;
        explicit Stream(allocator_type nodes) : freed(nodes), fences(nodes) {}
        const ContextState* context = nullptr;
        std::pmr::map<Place, std::uint64_t> freed;  // and when
        std::pmr::deque<Fence> fences;
        std::size_t unfenced_blocks = 0;
        std::uint64_t unfenced_bytes = 0;
    };

    bool take(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address) GP_REQUIRES(mutex_);
    void poll_fences() GP_REQUIRES(mutex_);
    void complete(Stream& stream, std::uint64_t command) GP_REQUIRES(mutex_);
    // To the program and from it. None: it is not the program's.
    void give(const Place& place) GP_REQUIRES(mutex_);
    std::optional<Place> take_back(std::uint64_t address) GP_REQUIRES(mutex_);
    void put_back(const Place& place) GP_REQUIRES(mutex_);
    // What was put back goes to the heap, without the lock: the server may have to be told. The last of each method.
    void give_unused(UniqueLock& lock) GP_RELEASE(mutex_);
    Place unkeep(std::pmr::set<Place>::iterator it) GP_REQUIRES(mutex_);

    DeviceHeap& heap_;
    mutable Mutex mutex_;
    std::vector<std::uint64_t> unused_ GP_GUARDED_BY(mutex_);  // addresses, for the heap
    std::pmr::unsynchronized_pool_resource
        nodes_;  // of the next three: calls allocate only where there never were as many
    std::pmr::unordered_map<std::uint64_t, std::uint64_t> live_ GP_GUARDED_BY(mutex_){&nodes_};  // address, bytes
    std::pmr::map<StreamKey, Stream> streams_ GP_GUARDED_BY(mutex_){&nodes_};  // with something freed or a fence
    std::pmr::set<Place> kept_ GP_GUARDED_BY(mutex_){&nodes_};                 // complete, unused, large
    std::atomic<std::size_t> freed_count_{0};                                  // blocks in all streams' `freed`
    std::uint64_t kept_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t release_threshold_ GP_GUARDED_BY(mutex_) = 0;
    Usage usage_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
