// Pinned memory of executable graphs: bounded for the session, and freed on a helper thread, because the driver waits for
// all work when it frees (measured) and the work may wait for the dispatcher.
//
// It is ours, and registered with the driver: a context that ends takes the registration along, but not what data is on
// its way to or from.
//
// Ownership: a block frees itself; this outlives all blocks. Threads: any. Errors: the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/codec/record.h"
#include "server/driver/api.h"

namespace gpupool::worker {

class PinnedMemory {
  public:
    // The client takes no more than that at one time.
    static constexpr std::uint64_t kMaxBytes = codec::kMaxGraphCopyBytes;
    static constexpr std::uint64_t kLeastBytes = 4096;  // that a block takes, however small

    class Block {
      public:
        Block(PinnedMemory& owner, CUcontext context, void* memory, std::uint64_t bytes)
            : owner_(owner), context_(context), memory_(memory), bytes_(bytes) {}
        ~Block() { owner_.free({context_, memory_, bytes_}); }
        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;

        [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
        [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

      private:
        PinnedMemory& owner_;
        CUcontext context_;
        void* memory_;
        std::uint64_t bytes_;
    };
    using BlockPtr = std::shared_ptr<Block>;

    // `run_elsewhere` runs a function on a thread that may wait.
    PinnedMemory(const driver::Api& api, std::function<void(std::function<void()>)> run_elsewhere)
        : api_(api), run_elsewhere_(std::move(run_elsewhere)) {}

    // In the current context; zeroed, and mapped for the device.
    CUresult allocate(std::uint64_t bytes, BlockPtr& block);
    [[nodiscard]] std::uint64_t used_bytes() const;
    // The session has ended: what is left ends with the process.
    void stop();

  private:
    struct Freed {
        CUcontext context;
        void* memory;
        std::uint64_t bytes;
    };
    void free(const Freed& block);
    void free_all();

    const driver::Api& api_;
    const std::function<void(std::function<void()>)> run_elsewhere_;
    mutable std::mutex mutex_;
    std::uint64_t used_bytes_ = 0;
    std::vector<Freed> to_free_;
    bool stopped_ = false;
    bool freeing_ = false;  // one thread at a time: all of them may have to wait
};

}  // namespace gpupool::worker
