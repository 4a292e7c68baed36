// What NVIDIA's management library (NVML) shows of this machine: the memory of processes, to compare the accounts with,
// and how busy and how warm the devices are.
//
// It is read at intervals on the background thread, since NVML may take long while a driver is busy. There is nothing
// to read where NVML is not installed, or shows no processes (in some containers).
//
// Ownership: keeps the library loaded; outlives the Background. Threads: the loop's. Errors: none; the log says once
// why there is nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/daemon/loop.h"

namespace gpupool::daemon {

class NvmlReadings {
  public:
    using Bytes = std::map<std::pair<std::string, pid_t>, std::uint64_t>;  // by device and process
    struct Device {
        int utilization_percent = -1;  // of the time that some kernel ran; -1: not known
        int temperature_celsius = -1;  // -1: not known
    };
    struct Readings {
        Bytes bytes;
        std::map<std::string, Device> devices;  // by UUID
    };
    struct Snapshot {
        std::uint64_t number = 0;  // counts the reads; 0: none yet
        Readings readings;
    };

    static constexpr std::chrono::milliseconds kInterval{1000};

    NvmlReadings(Loop& loop, Background& background);
    ~NvmlReadings();
    NvmlReadings(const NvmlReadings&) = delete;

    [[nodiscard]] const Snapshot& latest() const { return latest_; }
    [[nodiscard]] Device device(const std::string& uuid) const;

  private:
    class Reader;
    void read();

    Background& background_;
    const std::shared_ptr<Reader> reader_;
    Timer next_;
    Snapshot latest_;
};

}  // namespace gpupool::daemon
