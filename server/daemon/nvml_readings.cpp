#include "server/daemon/nvml_readings.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/log.h"

namespace gpupool::daemon {
namespace {

// The part of NVML that is used, as nvml.h declares it.
using NvmlDevice = struct NvmlDeviceRecord*;
struct NvmlProcess {
    unsigned process;
    unsigned long long used_bytes;  // all bits set: not known
    unsigned gpu_instance, compute_instance;
};
struct NvmlUtilization {
    unsigned gpu_percent, memory_percent;
};

struct Nvml {
    int (*init)() = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*device)(unsigned, NvmlDevice*) = nullptr;
    int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
    int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
    // Null if this version does not have it.
    int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
    int (*temperature)(NvmlDevice, int sensor, unsigned*) = nullptr;
};

constexpr int kSuccess = 0;
constexpr int kSensorOfGpu = 0;
constexpr std::size_t kMaxProcesses = 4096;  // of one device

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

// Never closed: NVML keeps threads and locks of its own.
std::optional<Nvml> open_nvml() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return std::nullopt;
    }
    Nvml nvml;
    const bool whole = find(library, "nvmlInit_v2", nvml.init) && find(library, "nvmlDeviceGetCount_v2", nvml.count) &&
                       find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device) &&
                       find(library, "nvmlDeviceGetUUID", nvml.uuid) &&
                       find(library, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.processes);
    find(library, "nvmlDeviceGetUtilizationRates", nvml.utilization);
    find(library, "nvmlDeviceGetTemperature", nvml.temperature);
    return whole && nvml.init() == kSuccess ? std::optional(nvml) : std::nullopt;
}

NvmlReadings::Device read_device(const Nvml& nvml, NvmlDevice device) {
    NvmlReadings::Device reading;
    NvmlUtilization utilization{};
    if (nvml.utilization != nullptr && nvml.utilization(device, &utilization) == kSuccess) {
        reading.utilization_percent = static_cast<int>(std::min(utilization.gpu_percent, 100u));
    }
    unsigned celsius = 0;
    if (nvml.temperature != nullptr && nvml.temperature(device, kSensorOfGpu, &celsius) == kSuccess) {
        reading.temperature_celsius = static_cast<int>(std::min(celsius, 1000u));
    }
    return reading;
}

// False if NVML fails.
bool read_all(const Nvml& nvml, NvmlReadings::Readings& readings) {
    unsigned devices = 0;
    if (nvml.count(&devices) != kSuccess) {
        return false;
    }
    std::vector<NvmlProcess> processes(kMaxProcesses);
    for (unsigned i = 0; i < devices; ++i) {
        NvmlDevice device = nullptr;
        std::array<char, 96> uuid{};
        auto count = static_cast<unsigned>(processes.size());
        if (nvml.device(i, &device) != kSuccess || nvml.uuid(device, uuid.data(), uuid.size()) != kSuccess ||
            nvml.processes(device, &count, processes.data()) != kSuccess) {
            return false;
        }
        readings.devices[uuid.data()] = read_device(nvml, device);
        for (unsigned j = 0; j < count; ++j) {
            if (processes[j].used_bytes != ~0ull) {
                readings.bytes[{uuid.data(), static_cast<pid_t>(processes[j].process)}] = processes[j].used_bytes;
            }
        }
    }
    return true;
}

}  // namespace

// Used on the background thread only.
class NvmlReadings::Reader {
  public:
    enum class Outcome { read, failed, unavailable };
    struct Reading {
        Outcome outcome = Outcome::failed;
        Readings readings;
    };

    Reading read() {
        if (!std::exchange(opened_, true)) {
            nvml_ = open_nvml();
        }
        Reading reading;
        if (!nvml_) {
            reading.outcome = Outcome::unavailable;
        } else if (read_all(*nvml_, reading.readings)) {
            reading.outcome = Outcome::read;
        }
        return reading;
    }

  private:
    bool opened_ = false;
    std::optional<Nvml> nvml_;
};

NvmlReadings::NvmlReadings(Loop& loop, Background& background)
    : background_(background), reader_(std::make_shared<Reader>()), next_(loop, [this] { read(); }) {
    read();
}

NvmlReadings::~NvmlReadings() = default;

NvmlReadings::Device NvmlReadings::device(const std::string& uuid) const {
    const auto found = latest_.readings.devices.find(uuid);
    return found == latest_.readings.devices.end() ? Device{} : found->second;
}

void NvmlReadings::read() {
    background_.run([reader = reader_] { return reader->read(); },
                    [this](Reader::Reading reading) {
                        if (reading.outcome == Reader::Outcome::unavailable) {
                            log::debug("NVML is not installed or does not start: accounts are not compared with it");
                            return;
                        }
                        if (reading.outcome == Reader::Outcome::read) {
                            latest_ = {latest_.number + 1, std::move(reading.readings)};
                        }
                        next_.set_after(kInterval);
                    });
}

}  // namespace gpupool::daemon
