// What a session's dispatcher counts for the worker's reports.
//
// Threads: the dispatcher writes, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpupool {

struct SessionCounters {
    std::atomic<std::uint64_t> bytes_in{0};   // copied from the client to devices so far
    std::atomic<std::uint64_t> bytes_out{0};  // and back
    std::atomic<std::uint64_t> commands{0};   // of the client so far
    std::atomic<bool> working{false};         // work is queued, or outstanding on a GPU
};

}  // namespace gpupool
