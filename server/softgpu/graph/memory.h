// Memory that a graph allocates: its address is known when the node is made, its bytes are there from the node's run
// on.
//
// Ownership: nodes, running graphs and the live allocation share the reserved addresses; they go with the last of them.
// Threads: any. Errors: CUresult.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
  public:
    // Null when there are no addresses left.
    static std::shared_ptr<GraphMemory> reserve(Device& device, std::uint64_t size_bytes);
    GraphMemory(Device& device, std::uint64_t address, std::uint64_t size_bytes);
    ~GraphMemory();
    GraphMemory(const GraphMemory&) = delete;
    GraphMemory& operator=(const GraphMemory&) = delete;

    // Whether a graph's memory will lie there, and which graph's begins there (null: none).
    static bool reserves(std::uint64_t address, std::uint64_t bytes);
    static std::shared_ptr<GraphMemory> find(std::uint64_t address);

    // Counts the bytes as the device's, from a launch until they are given back: a driver keeps them too. False when
    // there are not enough.
    bool back();
    void give_back();
    // Gives back what no graph holds, of all that the device's graphs have.
    static void trim(Device& device);

    // What the nodes do when they run.
    CUresult allocate(Context& context);
    CUresult free();

    std::uint64_t address() const noexcept { return address_; }
    std::uint64_t size_bytes() const noexcept { return size_bytes_; }
    // By the calls made, not by what has run: a launch allocates, a free outside of the graph frees.
    bool held() const noexcept { return held_.load(); }
    void set_held(bool held) noexcept { held_.store(held); }
    bool instantiated() const noexcept { return instantiated_.load(); }
    void set_instantiated(bool instantiated) noexcept { instantiated_.store(instantiated); }
    // Launches that have not ended.
    void begin_launch() noexcept { launches_.fetch_add(1); }
    void end_launch() noexcept { launches_.fetch_sub(1); }

  private:
    std::uint64_t counted_bytes() const noexcept { return (size_bytes_ + 511) / 512 * 512; }

    Device& device_;
    const std::uint64_t address_;
    const std::uint64_t size_bytes_;
    std::atomic<bool> held_{false};
    std::atomic<bool> instantiated_{false};
    std::atomic<bool> backed_{false};
    std::atomic<unsigned> launches_{0};
};

}  // namespace gpupool::softgpu
