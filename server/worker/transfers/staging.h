// Pinned memory that data passes through on its way between the network and the GPU.
//
// The pool hands out chunks of a few sizes. Each size grows in blocks up to its limit. When it is used up, a copy that
// needs a chunk stays queued in its stream until one is returned; the dispatcher never blocks.
//
// No stream may starve the others: the GPU may not reach the work of one stream before another stream's data has
// arrived. So a stream may use no more chunks of a size than are left of it. A stream that uses none at all may also
// take from a reserve, of this size or a smaller one, that is closed to others. A stream that uses some need not: its
// own work returns them.
//
// The memory is the worker's, registered with the driver in the context that was current. A context that ends takes its
// registrations along, so its blocks end with it.
//
// Ownership: the pool owns all chunks; they end with the process.
// Threads: put() any, all others the dispatcher's.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "server/driver/api.h"
#include "server/worker/memory/context_owners.h"

namespace gpupool::worker {

// worker.cpp has the sizes that a worker uses.
struct StagingSize {
    std::size_t chunk_bytes = 0;
    std::size_t block_bytes = 0;    // registered at a time
    std::size_t max_bytes = 0;      // of all blocks
    std::size_t reserve_bytes = 0;  // beyond that, for streams that use no chunk
};

class Staging {
  public:
    using Sizes = std::vector<StagingSize>;  // ascending

    // How many chunks of each size one stream uses.
    class StreamUse;
    using StreamUsePtr = std::shared_ptr<StreamUse>;
    // Chunks that were returned while a context ends, see withhold().
    using Withheld = std::vector<std::byte*>;

    // `returned` is called, by any thread, when a chunk has been returned. `owners` may be null.
    Staging(const driver::Api& api, Sizes sizes, std::function<void()> returned, const ContextOwners* owners = nullptr)
        : api_(api), sizes_(std::move(sizes)), pools_(sizes_.size()), returned_(std::move(returned)), owners_(owners) {}

    // Returns a chunk for `bytes`, or a smaller one if there are more bytes than the largest chunk or few chunks are
    // left. Empty if the stream has to wait. Creates `use` if it is null. A context must be current, in case the pool
    // has to grow.
    std::span<std::byte> take(StreamUsePtr& use, std::size_t bytes);
    void put(std::byte* chunk);

    // The end of a context takes three calls. withhold() begins it: until the context has ended the GPU may use its
    // streams' chunks, so chunks that are returned from now on are kept out of use.
    void withhold();
    // Ends the withholding and returns the withheld chunks, for ended(). Blocks that are registered in `context` are
    // not used any more. `unused` is called, by any thread, once streams of other contexts use none of their chunks:
    // then the context may end.
    Withheld release(CUcontext context, std::function<void()> unused);
    // The context has ended: returns the withheld chunks to use and frees its blocks.
    void ended(CUcontext context, const Withheld& withheld);

  private:
    struct Block {
        std::byte* memory = nullptr;
        std::size_t size = 0;  // index of its size
        CUcontext context = nullptr;
        std::vector<StreamUsePtr> holders;  // for each chunk in use, the stream that uses it
        std::size_t in_use = 0;
        bool ending = false;
    };
    struct Pool {
        std::vector<std::byte*> free;
        std::size_t allocated_bytes = 0;
    };
    struct Ending {
        CUcontext context = nullptr;
        std::size_t in_use = 0;  // chunks
        std::function<void()> unused;
    };

    std::size_t left(std::size_t size) const GP_REQUIRES(mutex_);  // chunks
    bool grow(UniqueLock& lock, std::size_t size, std::size_t max_bytes) GP_REQUIRES(mutex_);
    std::span<std::byte> hand_out(const StreamUsePtr& use, std::size_t size) GP_REQUIRES(mutex_);
    Block& block_of(std::byte* chunk) GP_REQUIRES(mutex_);
    StreamUsePtr& holder_of(Block& block, std::byte* chunk) GP_REQUIRES(mutex_);
    // Returns what to call then, without the mutex.
    std::function<void()> take_back(std::byte* chunk) GP_REQUIRES(mutex_);

    const driver::Api& api_;
    const Sizes sizes_;
    Mutex mutex_;                                               // also guards all streams' use
    std::vector<Pool> pools_ GP_GUARDED_BY(mutex_);             // one for each size
    std::map<std::byte*, Block> blocks_ GP_GUARDED_BY(mutex_);  // by address
    std::vector<Ending> endings_ GP_GUARDED_BY(mutex_);
    Withheld withheld_ GP_GUARDED_BY(mutex_);
    bool withholding_ GP_GUARDED_BY(mutex_) = false;
    const std::function<void()> returned_;
    const ContextOwners* const owners_;
};

}  // namespace gpupool::worker
