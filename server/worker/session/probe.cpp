#include "server/worker/session/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/visible_devices.h"
#include "server/driver/library.h"
#include "server/worker/memory/driver_memory.h"

namespace gpupool::worker {
namespace {

nlohmann::json describe(const driver::Api& api, CUdevice device) {
    char name[256] = {};
    DeviceUuid uuid{};
    std::size_t total_bytes = 0;
    driver::call(api.cuDeviceGetName, name, static_cast<int>(sizeof name), device);
    driver::call(api.cuDeviceGetUuid, reinterpret_cast<CUuuid*>(uuid.data()), device);
    driver::call(api.cuDeviceTotalMem_v2, &total_bytes, device);
    return {{"name", name}, {"uuid", uuid_text(uuid)}, {"memory_total", total_bytes}};
}

// How much less memory is free with one context more, and the streams in it that are not charged to the quota. Other
// sessions of the server may allocate and free at the same time, so it is measured several times, and the middle value
// counts. 0 if it cannot be measured.
std::uint64_t context_bytes(const driver::Api& api, CUdevice device) {
    constexpr std::size_t kTimes = 3;
    CUcontext first = nullptr;
    if (driver::call(api.cuCtxCreate_v2, &first, 0u, device) != CUDA_SUCCESS) {
        return 0;  // too little memory is left, or only one context at a time is allowed
    }
    std::vector<std::uint64_t> taken;
    for (std::size_t i = 0; i < kTimes; ++i) {
        std::size_t before = 0, after = 0, total = 0;
        CUcontext second = nullptr;
        driver::call(api.cuMemGetInfo_v2, &before, &total);
        if (driver::call(api.cuCtxCreate_v2, &second, 0u, device) != CUDA_SUCCESS) {
            break;
        }
        for (std::size_t j = 0; j < DriverMemory::kStreamsOfContext; ++j) {  // they end with the context
            CUstream stream = nullptr;
            driver::call(api.cuStreamCreate, &stream, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
        }
        driver::call(api.cuMemGetInfo_v2, &after, &total);
        driver::call(api.cuCtxDestroy_v2, second);
        taken.push_back(before - std::min(before, after));
    }
    driver::call(api.cuCtxDestroy_v2, first);
    std::sort(taken.begin(), taken.end());
    return taken.empty() ? 0 : taken[taken.size() / 2];
}

int refuse(const std::string& why) {
    std::puts(nlohmann::json{{"error", why}}.dump().c_str());
    return 1;
}

}  // namespace

int probe(const std::string& setting, bool contexts) {
    const Result<driver::Library> library = driver::load(setting);
    if (!library) {
        return refuse(library.error().message);
    }
    const driver::Api& api = library->api;
    if (const CUresult result = driver::call(api.cuInit, 0u); result != CUDA_SUCCESS) {
        return refuse(fmt::format("cuInit of {} returned error {}", library->path, static_cast<int>(result)));
    }
    int count = 0;
    driver::call(api.cuDeviceGetCount, &count);
    nlohmann::json devices = nlohmann::json::array();
    std::vector<std::future<std::uint64_t>> measurements;  // of all devices at once: each takes about a second
    for (int device = 0; device < count; ++device) {
        devices.push_back(describe(api, device));
        if (contexts) {
            measurements.push_back(std::async(std::launch::async, context_bytes, std::cref(api), device));
        }
    }
    for (std::size_t i = 0; i < measurements.size(); ++i) {
        devices[i]["context"] = measurements[i].get();
    }
    const bool software = library->kind == driver::Kind::software;
    const nlohmann::json answer = {
        {"driver", library->path},
        {"kind", software ? "software" : "nvidia"},
        {"reason",
         setting == "auto" ? (software ? "no NVIDIA driver with a GPU was found" : "it has a GPU") : "as configured"},
        {"driver_version", library->version},
        {"devices", devices}};
    std::puts(answer.dump().c_str());
    return 0;
}

}  // namespace gpupool::worker
