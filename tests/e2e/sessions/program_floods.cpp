// Modes that put much behind something that does not move yet, as a driver takes it: all of it must go through once the
// way is free, and nothing may stand still for it meanwhile.
//
//   function_flood copy_flood synchronize_flood failed_download

#include <atomic>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

// The driver blocks the caller at about a thousand; below that it must not.
constexpr unsigned kMany = 900;

std::atomic<bool> released{false};
std::atomic<unsigned> ran{0};

// The stream waits, on the host's side, until `released`.
void block(CUstream stream) {
    must(driver.cuLaunchHostFunc(
             stream,
             [](void*) {
                 while (!released) {
                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                 }
             },
             nullptr),
         "cuLaunchHostFunc");
}

// Work of another stream comes through while `kMany` wait; then they are let go, and are all there at the end.
int release_and_check(CUstream stream, CUstream other, CUdeviceptr data) {
    unsigned word = 0;
    must(driver.cuMemsetD32Async(data, 77, 1, other), "cuMemsetD32Async");
    must(driver.cuMemcpyDtoHAsync(&word, data, sizeof word, other), "cuMemcpyDtoHAsync");
    must(driver.cuStreamSynchronize(other), "cuStreamSynchronize");
    say("passed", word);
    released = true;
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return word == 77 ? 0 : 10;
}

int failed_download(CUdeviceptr data, CUstream stream) {
    constexpr std::size_t kBytes = 4u << 20;
    void* host = nullptr;
    must(driver.cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
    // More than there is: it fails on the server, and somebody is told.
    CUresult result = driver.cuMemcpyDtoHAsync(host, data, kBytes, stream);
    if (result == CUDA_SUCCESS) {
        result = driver.cuStreamSynchronize(stream);
    }
    if (result == CUDA_SUCCESS) {
        return 11;
    }
    // The buffer is free again for a copy the other way.
    must(driver.cuMemcpyHtoDAsync(data, host, 1u << 20, stream), "cuMemcpyHtoDAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

}  // namespace

int run_flood(const std::string& mode) {
    if (mode != "function_flood" && mode != "copy_flood" && mode != "synchronize_flood" && mode != "failed_download") {
        return -1;
    }
    const CUcontext context = begin();
    CUstream stream = nullptr, other = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, 2u << 20), "cuMemAlloc");
    if (mode == "failed_download") {
        CUdeviceptr large = 0;
        must(driver.cuMemAlloc(&large, 32u << 20), "cuMemAlloc");  // in a slab of its own, which ends with it
        return failed_download(large + (30u << 20), stream);
    }
    std::vector<unsigned> words(kMany);
    block(stream);
    if (mode == "function_flood") {
        for (unsigned i = 0; i < kMany; ++i) {
            must(driver.cuLaunchHostFunc(
                     stream, [](void*) { ++ran; }, nullptr),
                 "cuLaunchHostFunc");
        }
        const int verdict = release_and_check(stream, other, data);
        return verdict != 0 ? verdict : ran == kMany ? 0 : 12;
    }
    if (mode == "copy_flood") {
        for (unsigned i = 0; i < kMany; ++i) {
            words[i] = i + 1;
            must(driver.cuMemcpyHtoDAsync(data + 4096 + i * 4, &words[i], 4, stream), "cuMemcpyHtoDAsync");
        }
        if (const int verdict = release_and_check(stream, other, data); verdict != 0) {
            return verdict;
        }
        std::vector<unsigned> seen(kMany);
        must(driver.cuMemcpyDtoH(seen.data(), data + 4096, kMany * 4), "cuMemcpyDtoH");
        return seen == words ? 0 : 13;
    }
    std::vector<std::thread> waiting;
    for (unsigned i = 0; i < 600; ++i) {
        waiting.emplace_back([&] {
            use(context);
            must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
            ++ran;
        });
    }
    const int verdict = release_and_check(stream, other, data);
    for (std::thread& thread : waiting) {
        thread.join();
    }
    return verdict != 0 ? verdict : ran == 600 ? 0 : 14;
}

}  // namespace gpupool::session_program
