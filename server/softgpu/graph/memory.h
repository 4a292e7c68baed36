// Memory that a graph allocates. Its address is known when the node is made; its bytes exist once the node has run.
//
// Ownership: nodes, running graphs and the live allocation share the reserved addresses, which are released with the
//   last of them.
// Threads: any. Errors: CUresult.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
  public:
    // Returns null if there are no addresses left.
    static std::shared_ptr<GraphMemory> reserve(Device& device, std::uint64_t size_bytes);
    GraphMemory(Device& device, std::uint64_t address, std::uint64_t size_bytes);
    ~GraphMemory();
    GraphMemory(const GraphMemory&) = delete;
    GraphMemory& operator=(const GraphMemory&) = delete;

    // Whether the range lies in memory reserved for a graph.
    static bool reserves(std::uint64_t address, std::uint64_t bytes);
    static std::shared_ptr<GraphMemory> find(std::uint64_t address);
    // Whether the address lies in memory of a graph that no launch has allocated, or that was freed.
    static bool is_idle(std::uint64_t address);

    // Counts the bytes as used on the device, from a launch until release(), as the driver does. Returns false if
    // there are not enough.
    bool commit();
    void release();
    // Releases all graph memory of the device that is not held and not being launched.
    static void trim(Device& device);

    // What the nodes do when they run.
    CUresult allocate(Context& context);
    CUresult free();

    std::uint64_t address() const noexcept { return address_; }
    std::uint64_t size_bytes() const noexcept { return size_bytes_; }
    // Changes when calls are made, not when work runs: a launch sets it, and a free outside of the graph clears it.
    bool held() const noexcept { return held_.load(); }
    void set_held(bool held) noexcept { held_.store(held); }
    bool instantiated() const noexcept { return instantiated_.load(); }
    void set_instantiated(bool instantiated) noexcept { instantiated_.store(instantiated); }
    // Counts launches that have not ended.
    void begin_launch() noexcept { launches_.fetch_add(1); }
    void end_launch() noexcept { launches_.fetch_sub(1); }

  private:
    std::uint64_t counted_bytes() const noexcept { return (size_bytes_ + 511) / 512 * 512; }

    Device& device_;
    const std::uint64_t address_;
    const std::uint64_t size_bytes_;
    std::atomic<bool> held_{false};
    std::atomic<bool> instantiated_{false};
    std::atomic<bool> committed_{false};
    std::atomic<unsigned> launches_{0};
};

}  // namespace gpupool::softgpu
