// Modes that are inside one call when their worker is killed. Each prints "waiting" before that call, "error CODE" and
// "at MILLISECONDS" when it fails, then makes other calls, which must all give the same error, and returns from main().
//   wait_synchronize wait_download wait_upload wait_host_function wait_event launches

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

std::atomic<pid_t> function_thread{0};
std::atomic<bool> over{false};

// Later calls of every kind: local, deferred and waiting ones.
int after_loss(CUresult lost, CUdeviceptr data, CUstream stream) {
    CUdeviceptr other = 0;
    CUstream another = nullptr;
    std::size_t free_bytes = 0, total_bytes = 0;
    std::array<char, 16> buffer{};
    const CUresult results[] = {
        driver.cuCtxSynchronize(),
        driver.cuStreamSynchronize(stream),
        driver.cuStreamQuery(stream),
        driver.cuMemAlloc(&other, std::size_t{64} << 20),
        driver.cuMemcpyDtoH(buffer.data(), data, buffer.size()),
        driver.cuMemcpyHtoD(data, buffer.data(), buffer.size()),
        driver.cuMemsetD8Async(data, 0, 16, stream),
        driver.cuStreamCreate(&another, CU_STREAM_DEFAULT),
        driver.cuMemGetInfo(&free_bytes, &total_bytes),
        driver.cuLaunchHostFunc(
            stream, [](void*) {}, nullptr),
        driver.cuMemFree(data),
        driver.cuStreamDestroy(stream),
        driver.cuInit(0),
    };
    int index = 0;
    for (const CUresult result : results) {
        if (result != lost) {
            say("call " + std::to_string(index) + " gave", result);
            return 5;
        }
        ++index;
    }
    say("consistent");
    return 0;
}

CUresult launch_until_error(CUstream stream) {
    const CUfunction function = kernel("store_word");
    CUdeviceptr data = 0;
    unsigned value = 1;
    must(driver.cuMemAlloc(&data, 4), "cuMemAlloc");
    void* arguments[] = {&data, &value};
    CUresult result = CUDA_SUCCESS;
    for (int launches = 1; result == CUDA_SUCCESS; ++launches) {
        result = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
        if (launches == 1000) {
            say("waiting");
        }
    }
    return result;
}

}  // namespace

int run_waiting(const std::string& mode) {
    if (mode.rfind("wait_", 0) != 0 && mode != "launches") {
        return -1;
    }
    begin();
    constexpr std::size_t kBytes = std::size_t{100} << 20;  // more than connection and staging buffer
    CUstream stream = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, kBytes), "cuMemAlloc");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    std::vector<char> host(kBytes);
    CUresult result = CUDA_SUCCESS;
    if (mode == "launches") {
        result = launch_until_error(stream);
    } else {
        if (mode != "wait_host_function") {
            block_until_release(stream);  // for ever
        }
        CUevent event = nullptr;
        must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        must(driver.cuEventRecord(event, stream), "cuEventRecord");
        if (mode == "wait_host_function") {
            // The function prints that it runs, so the kill happens during it.
            must(driver.cuLaunchHostFunc(
                     stream,
                     [](void*) {
                         function_thread = ::gettid();
                         say("waiting");
                         over.wait(false);
                     },
                     nullptr),
                 "cuLaunchHostFunc");
            result = driver.cuStreamSynchronize(stream);
        } else {
            say("waiting");
        }
        if (mode == "wait_synchronize") {
            result = driver.cuStreamSynchronize(stream);
        } else if (mode == "wait_download") {
            result = driver.cuMemcpyDtoHAsync(host.data(), data, kBytes, stream);
        } else if (mode == "wait_upload") {
            result = driver.cuMemcpyHtoDAsync(data, host.data(), kBytes, stream);
        } else if (mode == "wait_event") {
            result = driver.cuEventSynchronize(event);
        }
    }
    const auto at = now_ms();
    say("error", result);
    say("at", at);
    if (result == CUDA_SUCCESS) {
        return 6;
    }
    const int verdict = after_loss(result, data, stream);
    if (mode == "wait_host_function") {
        over = true;
        over.notify_all();
        // The function returns into a lost session, where its thread waits or ends.
        const bool returned = test::eventually([] {
            return test::state_of_thread(::getpid(), function_thread).state == 0 ||
                   test::is_blocked(::getpid(), function_thread);
        });
        say("returned", returned);
    }
    return verdict;
}

}  // namespace gpupool::session_program
