// What graphs use of this process, by name: functions that their host nodes call, memory that their copies read or
// write. The server only learns the names, and may ask for nothing else: memory that was named to be read is not
// written.
//
// A name is given once per function and argument, or per place, size and use, and stays: a captured graph may be
// launched until the session ends. Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class GraphHosts {
  public:
    struct Function {
        CUhostFn function = nullptr;
        void* argument = nullptr;
    };
    enum class Use : std::uint8_t { read, write };
    struct Memory {
        std::byte* place = nullptr;
        std::uint64_t bytes = 0;
        Use use = Use::read;
    };

    // From 1 on; 0: there are too many.
    std::uint64_t name_function(Function function);
    std::uint64_t name_memory(Memory memory);

    // Is there a graph of the program whose function or copy may write host memory?
    [[nodiscard]] bool write() const noexcept { return writes_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::optional<Function> function(std::uint64_t name) const;
    [[nodiscard]] std::optional<Memory> memory(std::uint64_t name) const;

  private:
    std::atomic<bool> writes_{false};
    mutable Mutex mutex_;
    std::vector<Function> functions_ GP_GUARDED_BY(mutex_);
    std::vector<Memory> memories_ GP_GUARDED_BY(mutex_);
    std::map<std::pair<CUhostFn, void*>, std::uint64_t> function_names_ GP_GUARDED_BY(mutex_);
    std::map<std::tuple<std::byte*, std::uint64_t, Use>, std::uint64_t> memory_names_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
