#include "server/worker/session/probe.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/visible_devices.h"
#include "server/driver/library.h"

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

int refuse(const std::string& why) {
    std::puts(nlohmann::json{{"error", why}}.dump().c_str());
    return 1;
}

}  // namespace

int probe(const std::string& setting) {
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
    for (int device = 0; device < count; ++device) {
        devices.push_back(describe(api, device));
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
