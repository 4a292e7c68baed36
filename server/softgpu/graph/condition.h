// Values that conditional nodes depend on. A condition's handle is the address of its word, to which kernels write
// (cudaGraphSetConditional, api/device_runtime.h).
//
// Ownership: the graph that it was made for, the nodes that depend on it, and running launches share it.
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <memory>

#include "protocol/calls/cuda_api.h"

namespace gpupool::softgpu {

class GraphCondition {
  public:
    GraphCondition(unsigned default_value, unsigned flags);
    ~GraphCondition();
    GraphCondition(const GraphCondition&) = delete;
    GraphCondition& operator=(const GraphCondition&) = delete;

    CUgraphConditionalHandle handle() const noexcept { return reinterpret_cast<std::uint64_t>(word_); }
    std::uint32_t value() const noexcept { return __atomic_load_n(word_, __ATOMIC_ACQUIRE); }
    // A condition belongs to one node, and that to one executable at a time.
    bool used() const noexcept { return used_; }
    void use() noexcept { used_ = true; }
    bool instantiated() const noexcept { return instantiated_; }
    void set_instantiated(bool instantiated) noexcept { instantiated_ = instantiated; }
    // Every launch of the graph begins with this.
    void assign_default() noexcept;

  private:
    std::uint32_t* const word_;
    const std::uint32_t default_value_;
    const bool assigns_;
    bool used_ = false, instantiated_ = false;  // guarded by graph_mutex()
};

}  // namespace gpupool::softgpu
