// The worker's side of mapped host memory (client/core/memory/host_mirrors.h): memory of this process at the client's
// addresses, registered with the driver, so that kernels reach it as if it were the client's.
//
// Where the client could give the memory itself (a memfd, over a shared memory connection), that is mapped instead,
// there is no baseline, and nothing is compared: what the GPU writes, the program has.
//
// Ownership: a mirror owns its pages and its baseline. Threads: the dispatcher's alone; registering, which takes long,
// and
//   unregistering, which waits for the GPU, are the handlers' affair. Errors: the driver's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/codec/memory_changes.h"

namespace gpupool::worker {

class HostMirrors {
  public:
    static constexpr std::uint64_t kMaxBytes = 4ull << 30;  // of a session
    static constexpr std::size_t kMaxMirrors = 65536;
    static constexpr std::size_t kMaxShared = 16384;  // a process has 65530 mappings

    using Send = std::function<void(std::span<const std::byte>)>;

    struct Pages {
        void* start = nullptr;
        std::size_t bytes = 0;
    };

    // Of the session; none until this is said.
    void limit_shared(std::uint64_t bytes) { max_shared_bytes_ = bytes; }

    // Nothing has to be compared.
    [[nodiscard]] bool empty() const { return mirrors_.size() == shared_; }
    [[nodiscard]] bool any_shared() const { return shared_ != 0; }

    // Takes the pages around the range, where this process has nothing else.
    CUresult reserve(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, Pages& pages);
    // The same with the client's memory, which `file` is; it was checked to be whole pages of `bytes`.
    CUresult share(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, int file, Pages& pages);
    // The driver knows them.
    void registered(std::uint64_t address);
    // The pages of a registered mirror, which from now on takes part in nothing; null pages: there is none. With the
    // context in which they are registered.
    Pages retire(std::uint64_t address, CUcontext& client_context);
    void release(std::uint64_t address);
    // The context has ended, and with it its registrations.
    void release_of(CUcontext client_context);

    // What the client has written.
    bool write(std::span<const std::byte> record);
    // What the GPU has written; before that what watch() has found and not sent.
    void collect(const Send& send);
    // The same, when it is time to look although nobody asks; true when anything had changed. `settle` runs before what
    // was found is sent, and may call collect(): a later value never goes before an earlier one.
    bool watch(const std::function<void()>& settle, const Send& send);

  private:
    struct Mirror {
        Pages pages;
        CUcontext client_context = nullptr;
        codec::SharedBlock block;
        codec::Baseline baseline;
        bool ready = false;
        bool shared = false;  // without a baseline
    };
    void add(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, const Pages& pages,
             codec::Baseline baseline, bool shared);
    void find(const Send& take);
    void send_found(const Send& send);

    static constexpr std::size_t kMaxFoundBytes = 1u << 20;  // then it is sent

    std::map<std::uint64_t, Mirror> mirrors_;    // by the range's address
    std::vector<std::vector<std::byte>> found_;  // by watch(), not sent yet
    std::size_t found_bytes_ = 0;
    std::uint64_t bytes_ = 0;  // of those with a baseline
    std::uint64_t shared_bytes_ = 0, max_shared_bytes_ = 0;
    std::size_t shared_ = 0;
    std::chrono::steady_clock::time_point next_poll_{};
};

}  // namespace gpupool::worker
