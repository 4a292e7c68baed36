// Pinned memory that bulk data passes through on its way between the network and the GPU.
//
// Chunks of one size, taken and given back; the pool grows in blocks up to its limit, and then whoever needs a chunk
// waits for one (held in its stream, never blocking the dispatcher).
//
// Ownership: the pool owns all chunks; they end with the process. Threads: take() the dispatcher's, put() any.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "server/driver/api.h"

namespace gpupool::worker {

class Staging {
  public:
    // `returned` is called, from any thread, when a chunk came back.
    Staging(const driver::Api& api, std::size_t chunk_bytes, std::size_t max_bytes, std::function<void()> returned)
        : api_(api), chunk_bytes_(chunk_bytes), max_bytes_(max_bytes), returned_(std::move(returned)) {}

    [[nodiscard]] std::size_t chunk_bytes() const { return chunk_bytes_; }

    // A chunk, or nullptr when all are in use. Needs a current context when the pool has to grow.
    std::byte* take();
    void put(std::byte* chunk);

    // What is given back until release() stays out of use: the GPU may still read or write it. One at a time; whoever
    // ends it gives the chunks back with put(). The dispatcher's.
    void withhold();
    std::vector<std::byte*> release();

  private:
    bool grow();

    static constexpr std::size_t kBlockBytes = 8u << 20;

    const driver::Api& api_;
    const std::size_t chunk_bytes_, max_bytes_;
    const std::function<void()> returned_;
    std::size_t allocated_bytes_ = 0;  // the dispatcher's
    std::mutex mutex_;
    std::vector<std::byte*> free_;  // guarded by mutex_, like the next two
    std::vector<std::byte*> withheld_;
    bool withholding_ = false;
};

}  // namespace gpupool::worker
