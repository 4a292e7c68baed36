// Counts the memory of graphs against the session's quota: that of allocation nodes, captured allocations included.
//
// The driver maps this memory when an executable is uploaded or launched, keeps it when the graph frees it, shares it
// between graphs, and releases what no graph holds when it is trimmed. It reports at any time how much it has mapped
// (docs/driver-facts.md), and the session is charged that much. Before a launch there must be room for everything that
// the graph allocates, unless it already has its memory. That is certain only for the same graph, or for graphs in one
// stream that free all that they allocate: another graph does not reuse memory that a graph has left allocated.
//
// Threads: the dispatcher's alone.
// Errors: CUDA_ERROR_OUT_OF_MEMORY if the quota is used up.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "protocol/calls/cuda_api.h"
#include "server/driver/api.h"

namespace gpupool::worker {

class MemoryAccount;

using BytesByDevice = std::map<CUdevice, std::uint64_t>;

// What an executable's nodes allocate, and in which stream it last got that memory.
struct GraphMemoryUse {
    BytesByDevice needs;
    bool frees_all = false;       // all that it allocates
    CUstream stream = nullptr;    // of the last launch
    std::size_t stack_bytes = 0;  // for which the driver made room when it instantiated the graph; 0: not known
    std::uint64_t epoch = 0;      // of the last launch; 0: none yet

    [[nodiscard]] bool none() const { return needs.empty(); }
    // May the driver block a launch in `next` until the previous launch, in another stream, has ended?
    [[nodiscard]] bool may_wait(CUstream next) const { return !none() && epoch != 0 && stream != next; }
};

class GraphMemory {
  public:
    // `account` outlives this.
    explicit GraphMemory(MemoryAccount& account) : account_(account) {}

    // Does the quota allow a launch of this graph if nothing else uses the account?
    [[nodiscard]] bool fits_quota(const GraphMemoryUse& use) const;
    // The most that a launch or upload may take, charged until it is known what it took. Released when destroyed.
    class Charge {
      public:
        Charge() = default;  // of nothing
        Charge(Charge&& other) noexcept
            : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::move(other.bytes_)) {}
        Charge& operator=(Charge other) noexcept {
            std::swap(memory_, other.memory_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }
        ~Charge() { release(); }
        [[nodiscard]] bool any() const { return memory_ != nullptr; }
        void release();

      private:
        friend class GraphMemory;
        GraphMemory* memory_ = nullptr;
        BytesByDevice bytes_;
    };

    // Does it have its memory already?
    [[nodiscard]] bool has_it(const GraphMemoryUse& use, CUstream stream) const {
        return use.none() || (use.epoch == epoch_ && use.stream == stream);
    }
    // Charges what a launch or upload may take, unless it has it, after trimming idle graphs if there is no room.
    CUresult charge(const driver::Api& api, const GraphMemoryUse& use, CUstream stream, Charge& charge);
    // Call after the launch or upload: counts what it took in place of `charge`.
    void end(const driver::Api& api, GraphMemoryUse& use, CUstream stream, Charge charge, CUresult result);
    // Has the driver release what no graph holds.
    CUresult trim(const driver::Api& api, CUdevice device);
    void trim_if_any(const driver::Api& api, CUdevice device);
    // Counts again what the driver has mapped. True if that is less than before.
    bool recount(const driver::Api& api);

  private:
    struct Device {
        std::uint64_t had_bytes = 0;      // what the driver had when last queried
        std::uint64_t pending_bytes = 0;  // of launches under way
        std::uint64_t charged_bytes = 0;  // the sum of both
    };

    bool recount(const driver::Api& api, CUdevice device);

    MemoryAccount& account_;
    std::map<CUdevice, Device> devices_;
    // A new epoch begins when memory of earlier launches may have gone to other graphs or back to the driver.
    std::uint64_t epoch_ = 1;
    CUstream last_stream_ = nullptr;  // of the last launch
    bool last_freed_all_ = false;
};

}  // namespace gpupool::worker
