// Bytes that a session has copied between its client and its devices so far.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpupool {

struct CopiedBytes {
    std::atomic<std::uint64_t> in{0};   // to devices
    std::atomic<std::uint64_t> out{0};  // and back
};

}  // namespace gpupool
