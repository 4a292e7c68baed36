// In place of NVIDIA's management library: shows the processes that the file FAKE_NVML lists, one a line, as
// "PROCESS BYTES".
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace {

struct Process {
    unsigned process;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};

constexpr int kSuccess = 0, kInsufficient = 7;
constexpr const char* kUuid = "GPU-67707570-6f6f-6c2d-736f-667467707500";  // of the software GPU's first device
int device = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
    return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 1;
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned, void** handle) {
    *handle = &device;
    return kSuccess;
}

int nvmlDeviceGetUUID(void*, char* uuid, unsigned bytes) {
    std::snprintf(uuid, bytes, "%s", kUuid);
    return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* processes) {
    std::ifstream file(std::getenv("FAKE_NVML"));
    unsigned found = 0;
    Process process{};
    while (file >> process.process >> process.used_bytes) {
        if (found == *count) {
            return kInsufficient;
        }
        processes[found++] = process;
    }
    *count = found;
    return kSuccess;
}
}
