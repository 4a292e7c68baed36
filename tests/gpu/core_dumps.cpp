// Attributes of core dumps, of the process and of a context; and notifications of the device, which never come here.
#include <array>
#include <cstring>
#include <string>

#include "tests/gpu/driver.h"

using namespace gpupool::programs;

namespace {

using Get = CUresult (*)(CUcoredumpSettings, void*, size_t*);
using Set = Get;

bool flag(Get get, CUcoredumpSettings attribute) {
    bool value = false;
    size_t bytes = sizeof value;
    DRIVER_OK(get(attribute, &value, &bytes));
    return value;
}

CUresult set_flag(Set set, CUcoredumpSettings attribute, bool value) {
    size_t bytes = sizeof value;
    return set(attribute, &value, &bytes);
}

std::string text(Get get, CUcoredumpSettings attribute) {
    std::array<char, 1024> value{};
    size_t bytes = value.size();
    DRIVER_OK(get(attribute, value.data(), &bytes));
    return value.data();
}

CUresult set_text(Set set, CUcoredumpSettings attribute, std::string value) {
    size_t bytes = value.size() + 1;
    return set(attribute, value.data(), &bytes);
}

unsigned generation_flags(Get get) {
    unsigned value = ~0u;
    size_t bytes = sizeof value;
    DRIVER_OK(get(CU_COREDUMP_GENERATION_FLAGS, &value, &bytes));
    return value;
}

void process() {
    const Get get = cuCoredumpGetAttributeGlobal;
    const Set set = cuCoredumpSetAttributeGlobal;
    check(!flag(get, CU_COREDUMP_ENABLE_ON_EXCEPTION) && flag(get, CU_COREDUMP_TRIGGER_HOST) &&
              !flag(get, CU_COREDUMP_LIGHTWEIGHT) && !flag(get, CU_COREDUMP_ENABLE_USER_TRIGGER) &&
              generation_flags(get) == CU_COREDUMP_DEFAULT_FLAGS,
          "the attributes at the start");
    DRIVER_OK(set_flag(set, CU_COREDUMP_TRIGGER_HOST, false));
    check(!flag(get, CU_COREDUMP_TRIGGER_HOST), "the host's own dump is off");
    DRIVER_OK(set_flag(set, CU_COREDUMP_LIGHTWEIGHT, true));
    check(flag(get, CU_COREDUMP_LIGHTWEIGHT) &&
              generation_flags(get) == (CU_COREDUMP_LIGHTWEIGHT_FLAGS | CU_COREDUMP_SKIP_ABORT),
          "both are flags: %x", generation_flags(get));
    unsigned flags = CU_COREDUMP_SKIP_ABORT;
    size_t bytes = sizeof flags;
    DRIVER_OK(set(CU_COREDUMP_GENERATION_FLAGS, &flags, &bytes));
    check(!flag(get, CU_COREDUMP_LIGHTWEIGHT) && generation_flags(get) == CU_COREDUMP_SKIP_ABORT, "and others");
    DRIVER_OK(set_text(set, CU_COREDUMP_FILE, "corefile"));
    DRIVER_OK(set_text(set, CU_COREDUMP_PIPE, "corepipe"));
    check(text(get, CU_COREDUMP_FILE) == "corefile" && text(get, CU_COREDUMP_PIPE) == "corepipe", "file and pipe");
    check_result(set_text(set, CU_COREDUMP_FILE, std::string(1024, 'x')), CUDA_ERROR_INVALID_VALUE, "a name too long");
    check(text(get, CU_COREDUMP_FILE) == "corefile", "which leaves the name");

    bytes = 0;
    DRIVER_OK(get(CU_COREDUMP_FILE, nullptr, &bytes));
    check(bytes == 1024, "the size of a name: %zu", bytes);
    DRIVER_OK(get(CU_COREDUMP_GENERATION_FLAGS, nullptr, &bytes));
    check(bytes == 4, "and of flags: %zu", bytes);
    check_result(get(static_cast<CUcoredumpSettings>(99), &flags, &bytes), CUDA_ERROR_INVALID_VALUE, "no attribute");
    check_result(get(CU_COREDUMP_TRIGGER_HOST, &flags, &bytes), CUDA_ERROR_INVALID_VALUE, "a wrong size");
    check_result(get(CU_COREDUMP_TRIGGER_HOST, &flags, nullptr), CUDA_ERROR_INVALID_VALUE, "no size");
}

void context() {
    const Get get = cuCoredumpGetAttribute;
    const Set set = cuCoredumpSetAttribute;
    bool value = false;
    size_t bytes = sizeof value;
    check_result(get(CU_COREDUMP_TRIGGER_HOST, &value, &bytes), CUDA_ERROR_INVALID_CONTEXT, "without a context");
    const Device device;
    DRIVER_OK(set_flag(set, CU_COREDUMP_TRIGGER_HOST, false));
    DRIVER_OK(set_text(set, CU_COREDUMP_FILE, "own-file"));
    check(!flag(get, CU_COREDUMP_TRIGGER_HOST) && text(get, CU_COREDUMP_FILE) == "own-file", "the context's own");
    check(text(cuCoredumpGetAttributeGlobal, CU_COREDUMP_FILE) != "own-file", "and not the process's");
    check_result(set_text(set, CU_COREDUMP_PIPE, "own-pipe"), CUDA_ERROR_INVALID_VALUE, "a context has no pipe");
    check_result(get(CU_COREDUMP_ENABLE_USER_TRIGGER, &value, &bytes), CUDA_ERROR_INVALID_VALUE, "and no trigger");
    DRIVER_OK(set_flag(set, CU_COREDUMP_ENABLE_ON_EXCEPTION, false));
    // gpupool writes no dumps, and says so.
    const CUresult enabled = set_flag(set, CU_COREDUMP_ENABLE_ON_EXCEPTION, true);
    check(enabled == CUDA_SUCCESS || enabled == CUDA_ERROR_NOT_SUPPORTED, "enabling dumps: %d", enabled);
    check(flag(get, CU_COREDUMP_ENABLE_ON_EXCEPTION) == (enabled == CUDA_SUCCESS), "and whether they are");
}

void hear(CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {
    check(false, "a notification, though nothing is over its budget");
}

void notifications() {
    const Device device;
    CUasyncCallbackHandle first = nullptr, second = nullptr;
    DRIVER_OK(cuDeviceRegisterAsyncNotification(device.device(), hear, nullptr, &first));
    DRIVER_OK(cuDeviceRegisterAsyncNotification(device.device(), hear, nullptr, &second));
    check(first != nullptr && second != nullptr && first != second, "two registrations");
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, 64 << 20));
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuDeviceUnregisterAsyncNotification(device.device(), first));
    DRIVER_OK(cuDeviceUnregisterAsyncNotification(device.device(), second));
    check_result(cuDeviceRegisterAsyncNotification(device.device(), nullptr, nullptr, &first), CUDA_ERROR_INVALID_VALUE,
                 "no function");
    check_result(cuDeviceRegisterAsyncNotification(99, hear, nullptr, &first), CUDA_ERROR_INVALID_DEVICE, "no device");
    check_result(cuDeviceUnregisterAsyncNotification(device.device(), nullptr), CUDA_ERROR_INVALID_VALUE,
                 "no registration");
}

}  // namespace

int main(int argc, char** argv) {
    Program program("core_dumps", argc, argv);
    DRIVER_OK(cuInit(0));
    program.section("process", process);
    program.section("context", context);
    program.section("notifications", notifications);
    return program.finish();
}
