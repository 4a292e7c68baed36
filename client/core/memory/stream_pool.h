// The default pool of a device for stream-ordered memory (cuMemAllocAsync), on top of the device's heap.
//
// A block that is freed in a stream is free behind all earlier work of that stream. So the same stream may reuse it at
// once, others only when the GPU has reached that point. The client learns that from synchronizing calls, and from
// fences: marks in a stream, set once every kBlocksPerFence frees or kBytesPerFence bytes, that the client can poll
// without a round trip. So an allocation needs a round trip only if the heap has to grow.
//
// As in the driver's pools, memory that is complete and not in use returns to the device at once, unless the release
// threshold lets the pool keep it.
//
// Times are numbers of commands: a block that was freed at `t` is complete when the work of all commands up to `t` is.
//
// Ownership: owns the blocks between allocation from the heap and return to it.
// Threads: any.
// Errors: the heap's. Out of memory may be due to blocks that are freed but not complete: wait, call complete() and
// release(), and retry.
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
    // Has the GPU reached the fence? Cheap: no round trip.
    using Passed = std::function<bool()>;
    // Sets a fence behind the work sent to the stream. May block; called without the pool's lock.
    using SetFence = std::function<Passed()>;

    // The most that is freed between two fences of a stream.
    static constexpr std::size_t kBlocksPerFence = 32;
    static constexpr std::uint64_t kBytesPerFence = 32u << 20;

    struct Usage {
        std::uint64_t used_bytes = 0, used_high_bytes = 0;
        // including freed blocks that were not returned to the heap
        std::uint64_t reserved_bytes = 0, reserved_high_bytes = 0;
    };

    explicit StreamPool(DeviceHeap& heap) : heap_(heap) {}

    CUresult allocate(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address);
    struct Where {
        StreamKey stream;
        const ContextState* context;
    };
    // Frees in stream order; `now`: how many commands the session has sent. False if the block is not this pool's.
    // Without `fence` only a synchronization completes it.
    bool free(std::uint64_t address, const Where& where, std::uint64_t now, const SetFence& fence);
    [[nodiscard]] bool holds(std::uint64_t address) const;
    // A block that the program has from the heap becomes this pool's, so that it can be freed in stream order.
    void adopt(std::uint64_t address, std::uint64_t bytes);
    // Frees a block that nothing uses any more.
    bool free_complete(std::uint64_t address);

    // The work of commands before `command` is complete, in the stream or in the whole context.
    void complete(const StreamKey& stream, std::uint64_t command);
    void complete(const ContextState& context, std::uint64_t command);
    // The context has ended, and so has its work.
    void end(const ContextState& context);
    // The context has ended, and its work counts as that of `other`.
    void move(const ContextState& context, const ContextState& other);
    // Returns complete and unused memory to the heap until at most `keep_bytes` are reserved.
    void release(std::uint64_t keep_bytes);

    void set_release_threshold(std::uint64_t bytes);
    [[nodiscard]] Usage usage() const;
    void reset_high(bool used, bool reserved);
    // Bytes that are complete and unused and that this pool keeps.
    [[nodiscard]] std::uint64_t kept_bytes() const;
    // Are there freed blocks that a synchronization could complete?
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
        std::pmr::map<Place, std::uint64_t> freed;  // value: when it was freed
        std::pmr::deque<Fence> fences;
        std::size_t unfenced_blocks = 0;
        std::uint64_t unfenced_bytes = 0;
    };

    bool take(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address) GP_REQUIRES(mutex_);
    void poll_fences() GP_REQUIRES(mutex_);
    void complete(Stream& stream, std::uint64_t command) GP_REQUIRES(mutex_);
    // Mark a block as used by the program, and as not used. None: the program does not have it.
    void give(const Place& place) GP_REQUIRES(mutex_);
    std::optional<Place> take_back(std::uint64_t address) GP_REQUIRES(mutex_);
    void put_back(const Place& place) GP_REQUIRES(mutex_);
    // Returns unused_ to the heap, without the lock: the heap may need to send. Call it last: it unlocks.
    void return_unused(UniqueLock& lock) GP_RELEASE(mutex_);
    Place take_kept(std::pmr::set<Place>::iterator it) GP_REQUIRES(mutex_);

    DeviceHeap& heap_;
    mutable Mutex mutex_;
    std::vector<std::uint64_t> unused_ GP_GUARDED_BY(mutex_);  // addresses to return to the heap
    std::pmr::unsynchronized_pool_resource
        nodes_;  // for the next three: calls allocate only when a map exceeds its largest size so far
    std::pmr::unordered_map<std::uint64_t, std::uint64_t> live_ GP_GUARDED_BY(mutex_){&nodes_};  // address, bytes
    std::pmr::map<StreamKey, Stream> streams_ GP_GUARDED_BY(mutex_){&nodes_};  // streams with freed blocks or fences
    std::pmr::set<Place> kept_ GP_GUARDED_BY(mutex_){&nodes_};                 // complete, unused, large
    std::atomic<std::size_t> freed_count_{0};  // number of blocks in all streams' `freed`
    std::uint64_t kept_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t release_threshold_ GP_GUARDED_BY(mutex_) = 0;
    Usage usage_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
