// Modes about quotas of device memory. QUOTA is the quota of each device in bytes, HELD what another process holds.
//
//   quota_shown    the quota is the device's size wherever a program looks, and all of it can be allocated
//   quota_devices  each of two devices has a quota of its own, whichever device's stream allocates
//   quota_hold     allocates HELD bytes, prints "ready", and frees them when its stdin ends
//   quota_share    another process holds HELD of the quota; when its stdin ends, waits until all of it is available

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

std::size_t number(const char* variable) {
    const char* const text = std::getenv(variable);
    must(text == nullptr ? CUDA_ERROR_ASSERT : CUDA_SUCCESS, variable);
    return std::strtoull(text, nullptr, 10);
}

void expect(bool right, const char* what) {
    must(right ? CUDA_SUCCESS : CUDA_ERROR_ASSERT, what);
}

std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    must(driver.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    return free;
}

// Checks that `bytes` can be allocated, and not one more.
void expect_available(std::size_t bytes, const char* what) {
    expect(free_bytes() == bytes, what);
    CUdeviceptr all = 0, more = 0;
    must(driver.cuMemAlloc(&all, bytes), what);
    expect(driver.cuMemAlloc(&more, 1) == CUDA_ERROR_OUT_OF_MEMORY, what);
    must(driver.cuMemFree(all), "cuMemFree");
}

int show_quota() {
    const std::size_t quota = number("QUOTA");
    std::size_t free = 0, total = 0;
    must(driver.cuDeviceTotalMem(&total, 0), "cuDeviceTotalMem");
    say("total", static_cast<long long>(total));
    expect(total == quota, "cuDeviceTotalMem");
    begin();
    must(driver.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    say("total", static_cast<long long>(total));
    expect(total == quota && free == quota, "cuMemGetInfo");
    expect_available(quota, "the quota");
    return 0;
}

CUcontext context_on(CUdevice device) {
    CUcontext context = nullptr;
    must(driver.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    use(context);
    return context;
}

// Memory of a pool of device 1, allocated in a stream of device 0.
void use_pool_of_other_device(CUmemoryPool pool, const std::array<CUcontext, 2>& contexts) {
    const std::size_t quota = number("QUOTA");
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    use(contexts[0]);
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAllocFromPoolAsync(&block, quota / 2, pool, stream), "cuMemAllocFromPoolAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    expect(free_bytes() == quota, "device 0 is charged for memory of device 1");
    use(contexts[1]);
    expect(free_bytes() == quota / 2, "device 1 is not charged for its memory");
    use(contexts[0]);
    CUdeviceptr more = 0;
    expect(driver.cuMemAllocFromPoolAsync(&more, quota / 2 + 1, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY,
           "a pool of device 1 beyond its quota");
    must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    use(contexts[1]);
    expect_available(quota, "after a pool of device 1");
}

int use_devices() {
    const std::size_t quota = number("QUOTA");
    std::array<CUcontext, 2> contexts{};
    std::array<CUdeviceptr, 2> all{};
    must(driver.cuInit(0), "cuInit");
    for (CUdevice device = 0; device < 2; ++device) {
        contexts[static_cast<std::size_t>(device)] = context_on(device);
        expect_available(quota, "the quota of a device");
        must(driver.cuMemAlloc(&all[static_cast<std::size_t>(device)], quota), "cuMemAlloc");
    }
    for (const CUdeviceptr block : all) {
        must(driver.cuMemFree(block), "cuMemFree");
    }
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemoryPool own = nullptr, standard = nullptr;
    must(driver.cuMemPoolCreate(&own, &properties), "cuMemPoolCreate");
    must(driver.cuDeviceGetDefaultMemPool(&standard, 1), "cuDeviceGetDefaultMemPool");
    use_pool_of_other_device(own, contexts);
    use_pool_of_other_device(standard, contexts);
    return 0;
}

void await_end_of_input() {
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
}

int hold() {
    begin();
    CUdeviceptr held = 0;
    must(driver.cuMemAlloc(&held, number("HELD")), "cuMemAlloc");
    say("ready");
    await_end_of_input();
    must(driver.cuMemFree(held), "cuMemFree");
    return 0;
}

int share() {
    const std::size_t quota = number("QUOTA"), held = number("HELD");
    begin();
    std::size_t total = 0;
    must(driver.cuDeviceTotalMem(&total, 0), "cuDeviceTotalMem");
    expect(total == quota, "the device's size");
    expect_available(quota - held, "what another process leaves");
    say("shared");
    await_end_of_input();
    expect(test::eventually([&] { return free_bytes() == quota; }), "what another process had");
    expect_available(quota, "after another process");
    return 0;
}

}  // namespace

int run_quotas(const std::string& mode) {
    if (mode == "quota_shown") {
        must(driver.cuInit(0), "cuInit");
        return show_quota();
    }
    if (mode == "quota_devices") {
        return use_devices();
    }
    if (mode == "quota_hold") {
        return hold();
    }
    return mode == "quota_share" ? share() : -1;
}

}  // namespace gpupool::session_program
