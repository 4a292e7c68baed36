// Sequences of allocations and frees, the same in every run, and how much memory an allocator takes for them.
//
// Ownership: a trace frees all that it allocated. Threads: one. Units: bytes.
// Errors: std::runtime_error from a Memory that has no more.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace gpupool::fragmentation {

// An allocator that is looked at.
class Memory {
  public:
    virtual ~Memory() = default;
    virtual std::uint64_t allocate(std::uint64_t bytes) = 0;
    virtual void free(std::uint64_t address) = 0;
    // What is gone from the GPU since this was made.
    virtual std::uint64_t taken_bytes() = 0;
};

struct Usage {
    std::uint64_t most_live_bytes = 0, most_taken_bytes = 0;
    // Sums over looks, for means.
    double live_bytes = 0, taken_bytes = 0;

    // How much more memory the GPU needs than was asked for at the same time.
    [[nodiscard]] double peak() const {
        return static_cast<double>(most_taken_bytes) / static_cast<double>(most_live_bytes);
    }
    [[nodiscard]] double mean() const { return taken_bytes / live_bytes; }
};

struct Trace {
    const char* name;
    const char* what;
    std::function<void(class Replay&)> run;
};

std::vector<Trace> all_traces();
Usage measure(const Trace& trace, Memory& memory);

}  // namespace gpupool::fragmentation
