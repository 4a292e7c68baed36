// Pinned memory, of executable graphs or of the words that streams write to and wait for: bounded for the session, and
// used again instead of being given back: the driver waits for all work when it unregisters memory. Only where the
// bound is reached is idle memory given back, on a helper thread (waiting_calls.h).
//
// It is ours, and registered with the driver: a context that ends takes the registration along, but not what data is on
// its way to or from.
//
// Ownership: a block frees itself; this outlives all blocks. Threads: any. Errors: the driver's.
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

namespace gpupool::worker {

class PinnedMemory {
  public:
    // The client's graphs take no more than that at one time.
    static constexpr std::uint64_t kMaxBytes = codec::kMaxGraphCopyBytes;
    static constexpr std::uint64_t kLeastBytes = 4096;  // that a block takes, however small; sizes are powers of two

    struct Piece {
        CUcontext context = nullptr;
        std::uint64_t context_number = 0;  // tells contexts apart that have had one handle
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

    // `run_elsewhere` runs a function on a thread that may wait.
    PinnedMemory(const driver::Api& api, std::function<void(std::function<void()>)> run_elsewhere)
        : api_(api), run_elsewhere_(std::move(run_elsewhere)) {}

    // In the current context; zeroed, and mapped for the device.
    CUresult allocate(std::uint64_t bytes, BlockPtr& block);
    // Idle memory included.
    [[nodiscard]] std::uint64_t used_bytes() const;
    // The context has ended, and what was registered in it is so no more.
    void forget(CUcontext context);
    // The session has ended: what is left ends with the process.
    void stop();

  private:
    void free(const Piece& piece);
    void give_back_idle();
    bool take_idle(CUcontext context, std::uint64_t bytes, Piece& piece) GP_REQUIRES(mutex_);  // with mutex_ held

    const driver::Api& api_;
    const std::function<void(std::function<void()>)> run_elsewhere_;
    mutable Mutex mutex_;
    std::uint64_t used_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::vector<Piece> idle_ GP_GUARDED_BY(mutex_);
    // How many contexts of that handle have ended.
    std::map<CUcontext, std::uint64_t> context_numbers_ GP_GUARDED_BY(mutex_);
    bool stopped_ GP_GUARDED_BY(mutex_) = false;
    bool giving_back_ GP_GUARDED_BY(mutex_) = false;  // one thread at a time: all of them may have to wait
};

}  // namespace gpupool::worker
