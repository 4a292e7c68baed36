// What NVIDIA's management library (NVML) shows of the memory of processes, to compare the accounts with.
//
// A thread reads it at intervals, since NVML may take long while a driver is busy. There is nothing to read where NVML
// is not installed, or shows no processes (in some containers).
//
// Ownership: owns the library and the thread; the destructor waits for a read that is under way.
// Threads: any calls latest().
// Errors: none; the log says once why there is nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/mutex.h"

namespace gpupool::daemon {

class ProcessMemory {
  public:
    using Bytes = std::map<std::pair<std::string, pid_t>, std::uint64_t>;  // by device and process
    struct Snapshot {
        std::uint64_t number = 0;  // counts the reads; 0: none yet
        Bytes bytes;
    };

    static constexpr std::chrono::milliseconds kInterval{1000};

    ProcessMemory();
    ~ProcessMemory();
    ProcessMemory(const ProcessMemory&) = delete;

    [[nodiscard]] std::shared_ptr<const Snapshot> latest() const;

  private:
    void run(const std::function<bool(Bytes&)>& read);

    mutable Mutex mutex_;
    Condition ending_;
    bool over_ GP_GUARDED_BY(mutex_) = false;
    std::shared_ptr<const Snapshot> latest_ GP_GUARDED_BY(mutex_) = std::make_shared<Snapshot>();
    std::thread thread_;
};

}  // namespace gpupool::daemon
