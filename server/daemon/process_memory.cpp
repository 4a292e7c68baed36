#include "server/daemon/process_memory.h"

#include <dlfcn.h>

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

struct Nvml {
    int (*init)() = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*device)(unsigned, NvmlDevice*) = nullptr;
    int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
    int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
};

constexpr int kSuccess = 0;
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
    return whole && nvml.init() == kSuccess ? std::optional(nvml) : std::nullopt;
}

// False if NVML fails.
bool read_all(const Nvml& nvml, ProcessMemory::Bytes& bytes) {
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
        for (unsigned j = 0; j < count; ++j) {
            if (processes[j].used_bytes != ~0ull) {
                bytes[{uuid.data(), static_cast<pid_t>(processes[j].process)}] = processes[j].used_bytes;
            }
        }
    }
    return true;
}

}  // namespace

// Used on the background thread only.
class ProcessMemory::Reader {
  public:
    enum class Outcome { read, failed, unavailable };
    struct Reading {
        Outcome outcome = Outcome::failed;
        Bytes bytes;
    };

    Reading read() {
        if (!std::exchange(opened_, true)) {
            nvml_ = open_nvml();
        }
        Reading reading;
        if (!nvml_) {
            reading.outcome = Outcome::unavailable;
        } else if (read_all(*nvml_, reading.bytes)) {
            reading.outcome = Outcome::read;
        }
        return reading;
    }

  private:
    bool opened_ = false;
    std::optional<Nvml> nvml_;
};

ProcessMemory::ProcessMemory(Loop& loop, Background& background)
    : background_(background), reader_(std::make_shared<Reader>()), next_(loop, [this] { read(); }) {
    read();
}

ProcessMemory::~ProcessMemory() = default;

void ProcessMemory::read() {
    background_.run([reader = reader_] { return reader->read(); },
                    [this](Reader::Reading reading) {
                        if (reading.outcome == Reader::Outcome::unavailable) {
                            log::debug("accounts are not compared with NVML, which is not installed or does not start");
                            return;
                        }
                        if (reading.outcome == Reader::Outcome::read) {
                            latest_ = {latest_.number + 1, std::move(reading.bytes)};
                        }
                        next_.set_after(kInterval);
                    });
}

}  // namespace gpupool::daemon
