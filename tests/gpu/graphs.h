// Shared by the programs about graphs: graphs.cpp (explicit graphs) with graphs_capture.cpp (stream capture) and
// graphs_owning.cpp (nodes that own memory or graphs), graph_calls.cpp and graph_parts.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include "tests/gpu/driver.h"

namespace gpupool::programs {

// A block of words on the device, one in pinned memory and the kernels that the graphs use.
struct GraphWork {
    static constexpr unsigned kWords = 1000;
    static constexpr size_t kBytes = kWords * sizeof(unsigned);
    static constexpr unsigned kBlocks = (kWords + 127) / 128;
    static constexpr unsigned kThreads = 128;

    GraphWork();
    ~GraphWork();
    GraphWork(const GraphWork&) = delete;
    GraphWork& operator=(const GraphWork&) = delete;

    void fill_host(unsigned value) const;
    bool host_holds(unsigned value) const;
    bool device_holds(unsigned value) const;  // waits for the context

    Module module;
    CUfunction add;
    CUdeviceptr device = 0;
    unsigned* host_in = nullptr;
    unsigned* host_out = nullptr;
    CUstream stream = nullptr;
};

CUDA_MEMCPY3D copy_out(const GraphWork& work);  // from the device to host_out
size_t node_count(CUgraph graph);
CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0);

void capture_and_replay(const GraphWork& work);
void capture_behind_work(const GraphWork& work);
void capture_two_streams(const GraphWork& work);
void capture_destroyed(const GraphWork& work);
void capture_information(const GraphWork& work);
void capture_rules(const GraphWork& work, const Device& device);
void capture_mistakes(const GraphWork& work, const Device& device);
void memory_and_host(const GraphWork& work);
void conditional(const GraphWork& work, const Device& device);

}  // namespace gpupool::programs
