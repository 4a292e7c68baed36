// The parts of this process that graphs use: functions of host nodes, and memory that copies read or write. The server
// only learns their names and can ask for nothing else. Memory that was named for reading is never written.
//
// A name belongs to one function with its argument, or to one place, size and use. It stays valid until the session
// ends, because a graph may be launched until then.
// Ownership: numbers and addresses only; the application owns functions and memory.
// Threads: any.
// Errors: see the methods.
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

    // Return a name, at least 1; 0 if there are too many.
    std::uint64_t name_function(Function function);
    std::uint64_t name_memory(Memory memory);

    // Does any graph contain a host function, or a copy that writes host memory?
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
