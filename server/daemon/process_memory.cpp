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

ProcessMemory::ProcessMemory() {
    thread_ = std::thread([this] {
        const auto nvml = open_nvml();
        if (!nvml) {
            log::debug("accounts are not compared with NVML, which is not installed or does not start");
            return;
        }
        run([&nvml](Bytes& bytes) { return read_all(*nvml, bytes); });
    });
}

ProcessMemory::~ProcessMemory() {
    {
        const Lock lock(mutex_);
        over_ = true;
    }
    ending_.notify_all();
    thread_.join();
}

void ProcessMemory::run(const std::function<bool(Bytes&)>& read) {
    for (std::uint64_t number = 1;; ++number) {
        auto snapshot = std::make_shared<Snapshot>();
        snapshot->number = number;
        const bool valid = read(snapshot->bytes);
        UniqueLock lock(mutex_);
        if (valid) {
            latest_ = std::move(snapshot);
        }
        if (ending_.wait_for(lock, kInterval, [&]() GP_REQUIRES(mutex_) { return over_; })) {
            return;
        }
    }
}

std::shared_ptr<const ProcessMemory::Snapshot> ProcessMemory::latest() const {
    const Lock lock(mutex_);
    return latest_;
}

}  // namespace gpupool::daemon
