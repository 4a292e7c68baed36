#include "server/worker/session/prepared.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "common/driver_environment.h"
#include "common/log.h"
#include "common/visible_devices.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/prepared_context.h"
#include "server/worker/session/welcome.h"

namespace gpupool::worker {
namespace {

// Sets the driver's environment variables as the client says, but no others.
void take_environment(capnp::List<schema::EnvironmentEntry>::Reader environment) {
    const auto variable = [](const char* name) {
        const char* const value = std::getenv(name);
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    const std::optional<std::string> operators_devices = variable("CUDA_VISIBLE_DEVICES");
    for (const char* name : kDriverVariables) {
        unsetenv(name);
    }
    // Launches must never block the dispatcher. The client itself waits if the program sets this variable.
    unsetenv("CUDA_LAUNCH_BLOCKING");
    for (const auto entry : environment) {
        if (const std::string name = entry.getName(); is_driver_variable(name)) {
            setenv(name.c_str(), entry.getValue().cStr(), 1);
        }
    }
    // Devices that the server's operator hides stay hidden.
    if (const auto devices = visible_among(operators_devices, variable("CUDA_VISIBLE_DEVICES"))) {
        setenv("CUDA_VISIBLE_DEVICES", devices->c_str(), 1);
    }
}

Error unusable(std::string message) {
    return Error{ErrorCode::unavailable, std::move(message)};
}

}  // namespace

Result<std::unique_ptr<Prepared>> prepare(const std::string& driver_path,
                                          capnp::List<schema::EnvironmentEntry>::Reader environment) {
    take_environment(environment);
    auto prepared = std::make_unique<Prepared>();
    Status captured = prepared->output.capture(STDOUT_FILENO);
    captured = captured ? prepared->errors.capture(STDERR_FILENO) : captured;
    if (!captured) {
        log::warn("what kernels print cannot be forwarded: {}", captured.error().message);
    }
    auto library = driver::load(driver_path);
    if (!library) {
        return unusable("the server cannot load its driver: " + library.error().message);
    }
    prepared->library = std::move(*library);
    const driver::Api& api = prepared->library.api;
    if (const CUresult result = driver::call(api.cuInit, 0u);
        result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE) {
        return unusable(
            fmt::format("the server's driver does not start: cuInit returned error {}", static_cast<int>(result)));
    }
    int visible = 0;
    if (driver::call(api.cuDeviceGetCount, &visible) != CUDA_SUCCESS || visible == 0) {
        const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
        return unusable(chosen == nullptr ? std::string("the server has no GPU")
                                          : fmt::format("CUDA_VISIBLE_DEVICES shows none of the server's GPUs (the "
                                                        "driver was given '{}')",
                                                        chosen));
    }
    describe_driver(prepared->library, prepared->welcome.initRoot<schema::Welcome>());
    return prepared;
}

namespace {

bool is_short_of_memory(const driver::Api& api, CUcontext context) {
    constexpr std::size_t kFreeDivisor = 8;  // an eighth of the memory has to stay free
    std::size_t free = 0, total = 0;
    const CUresult asked = in_context(api, context, [&] { return driver::call(api.cuMemGetInfo_v2, &free, &total); });
    driver::call(api.cuCtxSetCurrent, static_cast<CUcontext>(nullptr));
    return asked == CUDA_SUCCESS && free < total / kFreeDivisor;
}

}  // namespace

void prepare_context(Prepared& prepared) {
    constexpr CUdevice kDevice = PreparedContext::kDevice;
    const driver::Api& api = prepared.library.api;
    int mode = CU_COMPUTEMODE_DEFAULT;
    if (driver::call(api.cuDeviceGetAttribute, &mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, kDevice) != CUDA_SUCCESS ||
        mode != CU_COMPUTEMODE_DEFAULT) {
        log::debug("a worker for the stock makes no context: the device's compute mode is {}", mode);
        return;
    }
    const CUresult result = driver::call(api.cuDevicePrimaryCtxRetain, &prepared.context, kDevice);
    if (result != CUDA_SUCCESS) {
        prepared.context = nullptr;
        log::warn("a worker for the stock cannot make a context: error {}", static_cast<int>(result));
    }
    keep_context(prepared);
}

bool keep_context(Prepared& prepared) {
    const driver::Api& api = prepared.library.api;
    if (prepared.context != nullptr && is_short_of_memory(api, prepared.context)) {
        prepared.context = nullptr;
        driver::call(api.cuDevicePrimaryCtxRelease_v2, PreparedContext::kDevice);
        log::debug("a worker for the stock releases its context: the device is short of memory");
    }
    return prepared.context != nullptr;
}

}  // namespace gpupool::worker
