// Memory that the program's graphs allocate. Each allocation has one address for ever; a launch allocates it, and a
// graph or the program frees it, over and over. The client knows the graphs' nodes that allocate and free, and so which
// memory is allocated at the moment: it refuses at once what the driver would refuse, without waiting for it.
//
// Ownership: addresses and handles only.
// Threads: any. While no graph has allocated memory, a launch is one relaxed load.
// Errors: see the methods.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class GraphMemories {
  public:
    enum class Does : std::uint8_t { allocates, frees };

    // A node of a graph, or one that the capture with this id has made.
    void add(CUgraph graph, CUdeviceptr address, Does does);
    void add_captured(std::uint64_t capture, CUdeviceptr address, Does does);
    // `moved` has become a child graph of `graph`.
    void move(CUgraph moved, CUgraph graph);
    void instantiate(CUgraphExec executable, CUgraph graph, bool frees_first);

    // These return the addresses that nothing can allocate again and that are not allocated now.
    // The capture has ended, with `graph` or (null) without one.
    std::vector<CUdeviceptr> end_capture(std::uint64_t capture, CUgraph graph);
    std::vector<CUdeviceptr> destroy(CUgraph graph);
    std::vector<CUdeviceptr> destroy(CUgraphExec executable);

    struct Change {
        CUdeviceptr address = 0;
        bool allocated = false;
    };
    using Changes = std::vector<Change>;
    // A launch, to be noted before it is sent. The driver's verdict: CUDA_ERROR_INVALID_VALUE if the graph allocates
    // memory that is still allocated, or frees memory that is not. `changes`: its allocations and frees.
    CUresult launch(CUgraphExec executable, Changes& changes);
    // The launch with these changes was refused, and had no effect. Returns the changes that undo them.
    Changes undo(const Changes& changes);
    // The launch was sent as this command, which may fail later. Returns what undoes it if it has failed already.
    Changes sent(std::uint64_t command, const Changes& changes);
    // This command, a launch, has failed. Returns what undoes it.
    Changes failed(std::uint64_t command);

    enum class Freed : std::uint8_t { no, yes, last };  // last: nothing can allocate it again
    // The program frees it. `no`: it is not allocated.
    Freed free(CUdeviceptr address);
    // The free that had this result was refused.
    void undo_free(CUdeviceptr address, Freed freed);

  private:
    struct Node {
        CUdeviceptr address = 0;
        Does does = Does::allocates;
    };
    using Nodes = std::vector<Node>;
    struct Memory {
        std::size_t users = 0;  // nodes that allocate it, of graphs and executables
        bool allocated = false;
    };
    struct Executable {
        Nodes nodes;
        bool frees_first = false;  // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    };

    void hold(const Nodes& nodes) GP_REQUIRES(mutex_);
    std::vector<CUdeviceptr> let_go(const Nodes& nodes) GP_REQUIRES(mutex_);
    Changes undo_locked(const Changes& changes) GP_REQUIRES(mutex_);
    [[nodiscard]] bool is_allocated(CUdeviceptr address) const GP_REQUIRES(mutex_);
    [[nodiscard]] CUresult check_launch(const Executable& executable) const GP_REQUIRES(mutex_);

    std::atomic<bool> any_{false};
    mutable Mutex mutex_;
    std::unordered_map<CUdeviceptr, Memory> memories_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraph, Nodes> graphs_ GP_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Nodes> captures_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphExec, Executable> executables_ GP_GUARDED_BY(mutex_);
    // The last launches that changed memory, and the last that failed, by command. A failure may be reported before
    // sent() is called.
    std::map<std::uint64_t, Changes> sent_ GP_GUARDED_BY(mutex_);
    std::set<std::uint64_t> failed_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
