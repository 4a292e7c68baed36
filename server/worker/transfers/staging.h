// Pinned memory that data passes through on its way between the network and the GPU.
//
// Chunks of a few sizes, taken and given back; each size grows in blocks up to its limit, and then whoever needs a
// chunk waits for one (held in its stream, never blocking the dispatcher).
//
// No stream may keep the others from their data: the GPU may not come to what one was given before the data of another
// is there. So a stream holds no more chunks of a size than are left of it, and one that holds none at all gets a
// chunk where another would not: a smaller one, of which there are more in reserve. One that holds some need not, since
// its own work gives it back.
//
// The memory is ours, and registered with the driver in the context that was current: a context that ends takes its
// registrations along, so that its blocks end with it.
//
// Ownership: the pool owns all chunks; they end with the process. Threads: put() any, all others the dispatcher's.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "server/driver/api.h"

namespace gpupool::worker {

// The sizes that a worker has are in worker.cpp.
struct StagingSize {
    std::size_t chunk_bytes = 0;
    std::size_t block_bytes = 0;    // registered at a time
    std::size_t max_bytes = 0;      // of all blocks
    std::size_t reserve_bytes = 0;  // beyond that, for streams that hold none
};

class Staging {
  public:
    using Sizes = std::vector<StagingSize>;  // ascending

    // What one stream holds, in chunks of each size.
    class Share;
    using SharePtr = std::shared_ptr<Share>;
    // Of a context that is about to end, see withhold().
    using Withheld = std::vector<std::byte*>;

    // `returned` is called, from any thread, when a chunk came back.
    Staging(const driver::Api& api, Sizes sizes, std::function<void()> returned)
        : api_(api), sizes_(std::move(sizes)), pools_(sizes_.size()), returned_(std::move(returned)) {}

    // A chunk for `bytes`, or less where there are more or few are left; empty when `share` has to wait. `share` may be
    // null and is made then. Needs a current context when a pool has to grow.
    std::span<std::byte> take(SharePtr& share, std::size_t bytes);
    void put(std::byte* chunk);

    // A context is about to end, and until it has the GPU may use what its streams hold. What is given back from now on
    // stays out of use,
    void withhold();
    // until here; and nothing that is registered in `context` is handed out any more. `unused` is called, by any
    // thread, once no other context's stream holds any of it: then the context may end.
    Withheld release(CUcontext context, std::function<void()> unused);
    // It has.
    void ended(CUcontext context, const Withheld& withheld);

  private:
    struct Block {
        std::byte* memory = nullptr;
        std::size_t size = 0;  // its index
        CUcontext context = nullptr;
        std::vector<SharePtr> holders;  // of each chunk that is in use
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
    std::span<std::byte> hand_out(const SharePtr& share, std::size_t size) GP_REQUIRES(mutex_);
    Block& block_of(std::byte* chunk) GP_REQUIRES(mutex_);
    SharePtr& holder_of(Block& block, std::byte* chunk) GP_REQUIRES(mutex_);
    std::function<void()> take_back(std::byte* chunk) GP_REQUIRES(mutex_);  // what to call then, without the mutex

    const driver::Api& api_;
    const Sizes sizes_;
    Mutex mutex_;                                               // guards all below, and all shares
    std::vector<Pool> pools_ GP_GUARDED_BY(mutex_);             // of each size
    std::map<std::byte*, Block> blocks_ GP_GUARDED_BY(mutex_);  // by address
    std::vector<Ending> endings_ GP_GUARDED_BY(mutex_);
    Withheld withheld_ GP_GUARDED_BY(mutex_);
    bool withholding_ GP_GUARDED_BY(mutex_) = false;
    const std::function<void()> returned_;
};

}  // namespace gpupool::worker
