// The worker's side of mapped host memory (client/core/memory/host_mirrors.h): memory of this process at the client's
// addresses, registered with the driver, so that kernels can access it as if it were the client's.
//
// If the client can give the memory itself (a memfd, over a shared memory connection), the worker maps that instead.
// There is no baseline then and nothing is compared: the program sees what the GPU writes.
//
// Ownership: a mirror owns its pages and its baseline.
// Threads: the dispatcher's alone. The handlers register memory, which takes long, and unregister it, which waits for
//   the GPU, on helpers.
// Errors: the driver's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/clock.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/memory_changes.h"

namespace gpupool::worker {

class HostMirrors {
  public:
    static constexpr std::uint64_t kMaxBytes = 4ull << 30;  // of all mirrors of a session
    static constexpr std::size_t kMaxMirrors = 65536;
    static constexpr std::size_t kMaxShared = 16384;  // a process may have 65,530 mappings

    using Send = std::function<void(std::span<const std::byte>)>;

    struct Pages {
        void* start = nullptr;
        std::size_t bytes = 0;
    };

    explicit HostMirrors(TimeSource& clock = TimeSource::system()) : clock_(clock) {}

    // Sets the session's limit, which is 0 until then.
    void limit_shared(std::uint64_t bytes) { max_shared_bytes_ = bytes; }
    // Of all mirrors together, shared or not. None ends if the limit is lower than what there is.
    void limit_pinned(std::uint64_t bytes) { max_pinned_bytes_ = bytes; }

    // True if no mirror has to be compared.
    [[nodiscard]] bool empty() const { return mirrors_.size() == shared_; }
    [[nodiscard]] bool any_shared() const { return shared_ != 0; }

    // Maps the pages around the range, if this process has nothing else there.
    CUresult reserve(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, Pages& pages);
    // The same with the client's memory, `file`. The caller has checked that it consists of whole pages of `bytes`.
    CUresult share(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, int file, Pages& pages);
    // The pages at `address` are registered with the driver.
    void registered(std::uint64_t address);
    // Takes a registered mirror out of use and returns its pages, which are yet to be unregistered; null pages if there
    // is no such mirror. `client_context` becomes the context in which they are registered.
    Pages retire(std::uint64_t address, CUcontext& client_context);
    void release(std::uint64_t address);
    // The context has ended, and with it its registrations: releases its mirrors.
    void release_of(CUcontext client_context);

    // Does the address lie in memory that the client shares?
    [[nodiscard]] bool is_shared(std::uint64_t address) const;

    // Applies what the client has written. False if the record is malformed.
    bool write(std::span<const std::byte> record);
    // Compares the mirrors with their baselines and sends what the GPU has changed, after the changes that poll() has
    // found and not sent yet.
    void collect(const Send& send);
    // The same at intervals, for programs that poll their memory; true if anything had changed. Calls
    // `before_sending` before it sends changes. That may call collect(), so that a later value never goes before an
    // earlier one.
    bool poll(const std::function<void()>& before_sending, const Send& send);

  private:
    struct Mirror {
        Pages pages;
        CUcontext client_context = nullptr;
        codec::SharedBlock block;
        codec::Baseline baseline;
        bool ready = false;
        bool shared = false;  // mapped from the client's memory, without a baseline
    };
    void add(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, const Pages& pages,
             codec::Baseline baseline, bool shared);
    [[nodiscard]] bool fits(std::uint64_t bytes) const;
    void find(const Send& take);
    void send_found(const Send& send);

    static constexpr std::size_t kMaxFoundBytes = 1u << 20;  // then they are sent

    TimeSource& clock_;
    std::map<std::uint64_t, Mirror> mirrors_;    // by the range's address
    std::vector<std::vector<std::byte>> found_;  // found by poll(), not sent yet
    std::size_t found_bytes_ = 0;
    std::uint64_t bytes_ = 0;  // of mirrors with a baseline
    std::uint64_t shared_bytes_ = 0, max_shared_bytes_ = 0, max_pinned_bytes_ = UINT64_MAX;
    std::size_t shared_ = 0;
    TimeSource::TimePoint next_poll_{};
};

}  // namespace gpupool::worker
