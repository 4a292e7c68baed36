// Reproducible sequences of allocations and frees, and how much memory an allocator takes for them.
//
// Ownership: a trace frees all that it allocated. Threads: one. Units: bytes. Errors: a Memory throws
// std::runtime_error when it is exhausted.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace gpupool::fragmentation {

// The allocator under test.
class Memory {
  public:
    virtual ~Memory() = default;
    virtual std::uint64_t allocate(std::uint64_t bytes) = 0;
    virtual void free(std::uint64_t address) = 0;
    // The GPU memory taken since this object was made.
    virtual std::uint64_t taken_bytes() = 0;
};

struct Usage {
    std::uint64_t most_live_bytes = 0, most_taken_bytes = 0;
    // Sums over samples, for means.
    double live_bytes = 0, taken_bytes = 0;

    // The GPU memory needed, in relation to the memory allocated at the same time.
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
