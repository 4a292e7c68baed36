// What graphs' own memory takes of the session's quota: that of nodes which allocate, captured allocations among them.
//
// The driver maps it when an executable is uploaded or launched, keeps it when the graph frees it, lets graphs share
// it, and gives back what no graph holds when it is trimmed. It says at once what it has (docs/driver-facts.md), so
// that is what counts. Before a launch there has to be room for all that the graph allocates, unless it has its memory
// already: only of the same graph, or of graphs in one stream that free all that they allocate, is that known, since
// what one has left allocated is no other's.
//
// Threads: the dispatcher's alone. Errors: CUDA_ERROR_OUT_OF_MEMORY where the quota is used up.
#pragma once

#include <cstdint>
#include <map>

#include "protocol/calls/cuda_api.h"
#include "server/driver/api.h"

namespace gpupool::worker {

struct MemoryAccount;

using BytesByDevice = std::map<CUdevice, std::uint64_t>;

// What an executable's nodes allocate, and where it has been given it.
struct GraphMemoryUse {
    BytesByDevice needs;
    bool frees_all = false;     // what it allocates
    CUstream stream = nullptr;  // of the last launch
    std::uint64_t epoch = 0;    // of the last launch; 0: none yet

    [[nodiscard]] bool none() const { return needs.empty(); }
    // The driver waits for the launch before where that may still run in another stream.
    [[nodiscard]] bool may_wait(CUstream next) const { return !none() && epoch != 0 && stream != next; }
};

class GraphMemory {
  public:
    // `account` outlives this.
    explicit GraphMemory(MemoryAccount& account) : account_(account) {}

    // Could it ever be launched?
    [[nodiscard]] bool fits_quota(const GraphMemoryUse& use) const;
    // Around each launch and upload: what may come is charged, and then what came of it. What idle graphs have is given
    // back first where there is no room.
    CUresult begin(const driver::Api& api, const GraphMemoryUse& use, CUstream stream, BytesByDevice& charged);
    void end(const driver::Api& api, GraphMemoryUse& use, CUstream stream, const BytesByDevice& charged,
             CUresult result);
    void take_back(const BytesByDevice& charged);
    // Gives back what no graph holds.
    CUresult trim(const driver::Api& api, CUdevice device);
    void trim_if_any(const driver::Api& api, CUdevice device);
    // Counts what the driver has now. True when that is less than before.
    bool settle(const driver::Api& api);

  private:
    struct Device {
        std::uint64_t had_bytes = 0;      // the driver, when it was asked last
        std::uint64_t pending_bytes = 0;  // of launches under way
        std::uint64_t charged_bytes = 0;  // both
    };

    [[nodiscard]] bool has_it(const GraphMemoryUse& use, CUstream stream) const;
    bool settle(const driver::Api& api, CUdevice device);

    MemoryAccount& account_;
    std::map<CUdevice, Device> devices_;
    // A new one begins where what earlier launches were given may be another's since, or the driver's again.
    std::uint64_t epoch_ = 1;
    CUstream last_stream_ = nullptr;  // of the last launch
    bool last_freed_all_ = false;
};

}  // namespace gpupool::worker
