#include "server/worker/graphs/graph_memory.h"

#include <algorithm>

#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 56;

// The driver takes memory for graphs in parts of this size (measured).
std::uint64_t in_whole_parts(std::uint64_t bytes) {
    constexpr std::uint64_t kPartBytes = 32u << 20;
    return (std::min(bytes, kMaxBytes) + kPartBytes - 1) / kPartBytes * kPartBytes;
}

}  // namespace

bool GraphMemory::fits_quota(const GraphMemoryUse& use) const {
    return std::all_of(use.needs.begin(), use.needs.end(), [&](const auto& need) {
        const std::uint64_t quota = account_.quota_bytes(need.first);
        return quota == 0 || in_whole_parts(need.second) <= quota;
    });
}

CUresult GraphMemory::charge(const driver::Api& api, const GraphMemoryUse& use, CUstream stream, Charge& charge) {
    if (has_it(use, stream)) {
        return CUDA_SUCCESS;
    }
    for (const auto& [device, bytes] : use.needs) {
        if (!account_.fits(device, in_whole_parts(bytes))) {
            trim_if_any(api, device);
        }
    }
    charge.release();
    charge.memory_ = this;
    for (const auto& [device, bytes] : use.needs) {
        const std::uint64_t most = in_whole_parts(bytes);
        if (!account_.charge(device, most)) {
            charge.release();
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        charge.bytes_[device] = most;
        devices_[device].pending_bytes += most;
        devices_[device].charged_bytes += most;
    }
    return CUDA_SUCCESS;
}

void GraphMemory::Charge::release() {
    for (const auto& [device, bytes] : bytes_) {
        memory_->account_.release(device, bytes);
        memory_->devices_[device].pending_bytes -= bytes;
        memory_->devices_[device].charged_bytes -= bytes;
    }
    bytes_.clear();
    memory_ = nullptr;
}

void GraphMemory::end(const driver::Api& api, GraphMemoryUse& use, CUstream stream, Charge charge, CUresult result) {
    charge.release();
    for (const auto& [device, bytes] : use.needs) {
        recount(api, device);
    }
    if (result != CUDA_SUCCESS) {
        return;
    }
    const bool shares = use.frees_all && last_freed_all_ && stream == last_stream_;
    if (!has_it(use, stream) && !shares) {
        ++epoch_;
    }
    use.stream = last_stream_ = stream;
    use.epoch = epoch_;
    last_freed_all_ = use.frees_all;
}

CUresult GraphMemory::trim(const driver::Api& api, CUdevice device) {
    recount(api, device);  // so that the release is noticed
    const CUresult result = driver::call(api.cuDeviceGraphMemTrim, device);
    recount(api, device);
    return result;
}

void GraphMemory::trim_if_any(const driver::Api& api, CUdevice device) {
    if (devices_.contains(device)) {
        trim(api, device);
    }
}

bool GraphMemory::recount(const driver::Api& api, CUdevice device) {
    const auto it = devices_.find(device);
    cuuint64_t has = 0;
    if (it == devices_.end() ||
        driver::call(api.cuDeviceGetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                     static_cast<void*>(&has)) != CUDA_SUCCESS) {
        return false;
    }
    Device& state = it->second;
    if (has < state.had_bytes) {
        ++epoch_;  // if it has no other memory, the driver also takes back that of graphs
    }
    state.had_bytes = has;
    const std::uint64_t charged = has + state.pending_bytes, before = state.charged_bytes;
    if (charged >= before) {
        account_.force(device, charged - before);
    } else {
        account_.release(device, before - charged);
    }
    state.charged_bytes = charged;
    return charged < before;
}

bool GraphMemory::recount(const driver::Api& api) {
    bool any = false;
    for (const auto& [device, state] : devices_) {
        any = recount(api, device) || any;
    }
    return any;
}

}  // namespace gpupool::worker
