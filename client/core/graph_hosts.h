// What graphs use of this process, by name: functions that their host nodes call, memory that their copies read and
// write. The server only learns the names, and may ask for nothing else.
//
// A name is given once per function and argument, or per place and size, and stays: a captured graph may be launched
// until the session ends. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class GraphHosts {
  public:
    struct Function {
        CUhostFn function = nullptr;
        void* argument = nullptr;
    };
    struct Memory {
        std::byte* place = nullptr;
        std::uint64_t bytes = 0;
    };

    // From 1 on; 0: there are too many.
    std::uint64_t name_function(Function function);
    std::uint64_t name_memory(Memory memory);

    [[nodiscard]] std::optional<Function> function(std::uint64_t name) const;
    [[nodiscard]] std::optional<Memory> memory(std::uint64_t name) const;

  private:
    mutable std::mutex mutex_;
    std::vector<Function> functions_;
    std::vector<Memory> memories_;
    std::map<std::pair<CUhostFn, void*>, std::uint64_t> function_names_;
    std::map<std::pair<std::byte*, std::uint64_t>, std::uint64_t> memory_names_;
};

}  // namespace gpupool::client
