// The modes that meet the limits of a running session:
//   limit_busy      works until its stdin ends
//   limit_check     copies 20 patterns to 8 MiB of each device and back
//   limit_handles   makes HANDLES events; with MOST, no more than that many driver objects exist, and when events have
//                   ended there is room for others
//   limit_copy_in, limit_copy_out, limit_copy_pinned
//                   prints "ready" and copies 6 MiB to the device, back from it, or both ways with pinned memory
//   limit_grow      finds that HELD bytes do not fit, prints "full", tries until they do, prints "grown"; when its
//   stdin
//                   ends, nothing more may fit

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

constexpr std::size_t kCopiedBytes = 6u << 20;

std::size_t number_or_none(const char* variable) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

int work() {
    begin();
    CUdeviceptr memory = 0;
    must(driver.cuMemAlloc(&memory, 4096), "cuMemAlloc");
    say("ready");
    std::atomic<bool> over{false};
    std::thread waiting([&] {
        await_end_of_input();
        over = true;
    });
    CUresult result = CUDA_SUCCESS;
    while (!over && result == CUDA_SUCCESS) {
        driver.cuMemsetD8Async(memory, 1, 4096, nullptr);
        result = driver.cuCtxSynchronize();
    }
    if (result != CUDA_SUCCESS) {
        waiting.detach();
        std::_Exit(1);
    }
    waiting.join();
    return 0;
}

int check() {
    constexpr std::size_t kBytes = 8u << 20;
    must(driver.cuInit(0), "cuInit");
    int devices = 0;
    must(driver.cuDeviceGetCount(&devices), "cuDeviceGetCount");
    for (CUdevice device = 0; device < devices; ++device) {
        CUcontext context = nullptr;
        must(driver.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        use(context);
        CUdeviceptr memory = 0;
        must(driver.cuMemAlloc(&memory, kBytes), "cuMemAlloc");
        std::vector<unsigned char> there(256u << 10), back(there.size());
        for (unsigned char round = 0; round < 20; ++round) {
            std::fill(there.begin(), there.end(), static_cast<unsigned char>(round + 1));
            must(driver.cuMemcpyHtoD(memory, there.data(), there.size()), "cuMemcpyHtoD");
            must(driver.cuMemcpyDtoH(back.data(), memory, back.size()), "cuMemcpyDtoH");
            expect(there == back, "the copied data");
        }
    }
    return 0;
}

CUresult make_event(std::vector<CUevent>& events) {
    CUevent event = nullptr;
    const CUresult made = driver.cuEventCreate(&event, CU_EVENT_DEFAULT);
    if (made == CUDA_SUCCESS) {
        events.push_back(event);
        return driver.cuCtxSynchronize();  // its failure may be reported later
    }
    return made;
}

int make_handles() {
    const std::size_t wanted = number_or_none("HANDLES"), most = number_or_none("MOST");
    begin();
    std::vector<CUevent> events;
    CUresult result = CUDA_SUCCESS;
    while (events.size() < wanted && result == CUDA_SUCCESS) {
        result = make_event(events);
    }
    if (most == 0) {
        expect(result == CUDA_SUCCESS, "there is no limit");
        return 0;
    }
    expect(result == CUDA_ERROR_OUT_OF_MEMORY && events.size() <= most + 1, "the limit");
    for (std::size_t i = 0; i < 100; ++i) {
        must(driver.cuEventDestroy(events[i]), "cuEventDestroy");
    }
    std::vector<CUevent> others;
    for (std::size_t i = 0; i < 50; ++i) {
        must(make_event(others), "room for others");
    }
    return 0;
}

int copy(const std::string& mode) {
    begin();
    CUdeviceptr memory = 0;
    must(driver.cuMemAlloc(&memory, kCopiedBytes), "cuMemAlloc");
    must(driver.cuMemsetD8Async(memory, 5, kCopiedBytes, nullptr), "cuMemsetD8Async");
    std::vector<unsigned char> pageable(kCopiedBytes, 7);
    unsigned char* host = pageable.data();
    const bool pinned = mode == "limit_copy_pinned";
    if (pinned) {
        void* memory_of_host = nullptr;
        must(driver.cuMemHostAlloc(&memory_of_host, kCopiedBytes, 0), "cuMemHostAlloc");
        host = static_cast<unsigned char*>(memory_of_host);
        std::memset(host, 7, kCopiedBytes);
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    say("ready");
    unsigned char expected = 5;
    if (mode != "limit_copy_out") {
        for (int time = 0; time < 2; ++time) {  // the second finds the bandwidth used up
            must(driver.cuMemcpyHtoDAsync(memory, host, kCopiedBytes, nullptr), "cuMemcpyHtoDAsync");
        }
        must(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        expected = 7;
    }
    if (mode != "limit_copy_in") {
        std::memset(host, 0, kCopiedBytes);
        for (int time = 0; time < 2; ++time) {
            must(driver.cuMemcpyDtoHAsync(host, memory, kCopiedBytes, nullptr), "cuMemcpyDtoHAsync");
        }
        must(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        expect(host[0] == expected && host[kCopiedBytes - 1] == expected, "the copied data");
    }
    return 0;
}

int grow() {
    const std::size_t held = number_or_none("HELD");
    begin();
    CUdeviceptr memory = 0;
    expect(driver.cuMemAlloc(&memory, held) == CUDA_ERROR_OUT_OF_MEMORY, "it does not fit");
    say("full");
    expect(test::eventually([&] { return driver.cuMemAlloc(&memory, held) == CUDA_SUCCESS; }), "it fits");
    say("grown");
    await_end_of_input();
    CUdeviceptr more = 0;
    expect(driver.cuMemAlloc(&more, 32u << 20) == CUDA_ERROR_OUT_OF_MEMORY, "more than the lower quota");
    must(driver.cuMemFree(memory), "cuMemFree");
    must(driver.cuMemAlloc(&more, 1u << 20), "there is room again");
    return 0;
}

}  // namespace

int run_limits(const std::string& mode) {
    if (mode == "limit_busy") {
        return work();
    }
    if (mode == "limit_check") {
        return check();
    }
    if (mode == "limit_handles") {
        return make_handles();
    }
    if (mode == "limit_copy_in" || mode == "limit_copy_out" || mode == "limit_copy_pinned") {
        return copy(mode);
    }
    return mode == "limit_grow" ? grow() : -1;
}

}  // namespace gpupool::session_program
