#include "server/worker/device_memory.h"

#include <algorithm>

namespace gpupool::worker {

bool MemoryAccount::charge(CUdevice device, std::uint64_t bytes) {
    const auto index = static_cast<std::size_t>(device);
    if (device < 0 || index >= used_bytes.size()) {
        return false;
    }
    if (quota_bytes != 0 && (bytes > quota_bytes || used_bytes[index] > quota_bytes - bytes)) {
        return false;
    }
    used_bytes[index] += bytes;
    return true;
}

void MemoryAccount::release(CUdevice device, std::uint64_t bytes) {
    const auto index = static_cast<std::size_t>(device);
    if (device >= 0 && index < used_bytes.size()) {
        used_bytes[index] -= std::min(used_bytes[index], bytes);
    }
}

}  // namespace gpupool::worker
