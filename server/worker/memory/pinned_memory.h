// Pinned memory for executable graphs, and for the words that streams write to and wait for. It is bounded for the
// session. Freed blocks are kept for reuse, because the driver waits for all work when it unregisters memory. Only when
// the bound is reached does a helper thread release idle blocks (waiting_calls.h).
//
// The memory is the worker's, registered with the driver. A context that ends takes its registration along, but not the
// memory while data is on its way to or from it.
//
// Ownership: a block frees itself; PinnedMemory outlives all blocks.
// Threads: any.
// Errors: the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "protocol/codec/record.h"
#include "server/driver/api.h"
#include "server/worker/memory/context_owners.h"

namespace gpupool::worker {

class PinnedMemory {
  public:
    // The client's graphs never need more at one time.
    static constexpr std::uint64_t kMaxBytes = codec::kMaxGraphCopyBytes;
    static constexpr std::uint64_t kLeastBytes = 4096;  // least size of a block; sizes are powers of two

    struct Piece {
        CUcontext context = nullptr;
        std::uint64_t context_number = 0;  // distinguishes contexts that had the same handle
        void* memory = nullptr;
        std::uint64_t bytes = 0;
    };

    class Block {
      public:
        Block(PinnedMemory& owner, const Piece& piece) : owner_(owner), piece_(piece) {}
        ~Block() { owner_.free(piece_); }
        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;

        [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(piece_.memory); }
        [[nodiscard]] std::uint64_t bytes() const { return piece_.bytes; }

      private:
        PinnedMemory& owner_;
        Piece piece_;
    };
    using BlockPtr = std::shared_ptr<Block>;

    // `run_elsewhere` runs a function on a thread that may block.
    // `owners` may be null.
    PinnedMemory(const driver::Api& api, std::function<void(std::function<void()>)> run_elsewhere,
                 const ContextOwners* owners = nullptr)
        : api_(api), run_elsewhere_(std::move(run_elsewhere)), owners_(owners) {}

    // Allocates in the current context; zeroed, and mapped for the device.
    CUresult allocate(std::uint64_t bytes, BlockPtr& block);
    // Includes idle memory.
    [[nodiscard]] std::uint64_t used_bytes() const;
    // The context has ended, and its registrations with it.
    void forget(CUcontext context);
    // The session has ended: nothing is freed any more, what is left ends with the process.
    void stop();

  private:
    void free(const Piece& piece);
    void give_back_idle();
    bool take_idle(CUcontext context, std::uint64_t bytes, Piece& piece) GP_REQUIRES(mutex_);

    const driver::Api& api_;
    const std::function<void(std::function<void()>)> run_elsewhere_;
    const ContextOwners* const owners_;
    mutable Mutex mutex_;
    std::uint64_t used_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::vector<Piece> idle_ GP_GUARDED_BY(mutex_);
    // How many contexts of each handle have ended.
    std::map<CUcontext, std::uint64_t> context_numbers_ GP_GUARDED_BY(mutex_);
    bool stopped_ GP_GUARDED_BY(mutex_) = false;
    bool giving_back_ GP_GUARDED_BY(mutex_) = false;  // only one helper releases at a time: each may have to wait
};

}  // namespace gpupool::worker
