// Host functions in streams: a word of pinned memory, on which the stream waits, by the client's ticket.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

struct HostFunctionWords {
    struct Word {
        std::uint32_t* word = nullptr;
        CUdeviceptr device_word = 0;
    };
    std::unordered_map<std::uint64_t, Word> waiting;
    std::vector<Word> spare;
};

}  // namespace gpupool::worker
