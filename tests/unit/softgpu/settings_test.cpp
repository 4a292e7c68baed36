// The software GPU's environment variables. They are read once, so each test runs in its own process.
#include <chrono>
#include <cstdlib>

#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {
namespace {

// Ends the process with the failed line's number as status.
#define MUST(condition)                               \
    do {                                              \
        if (!(condition)) std::_Exit(__LINE__ % 255); \
    } while (false)

constexpr int kPassed = 0;

struct Work {
    Work() {
        MUST(CALL(cuInit)(0) == CUDA_SUCCESS);
        MUST(CALL(cuCtxCreate_v2)(&context, 0, 0) == CUDA_SUCCESS);
        MUST(CALL(cuModuleLoadData)(&module, file_bytes(GPUPOOL_SOFTGPU_KERNELS_PTX).c_str()) == CUDA_SUCCESS);
        MUST(CALL(cuMemAlloc_v2)(&memory, kBytes) == CUDA_SUCCESS);
        MUST(CALL(cuMemsetD8_v2)(memory, 0, kBytes) == CUDA_SUCCESS);
    }
    void launch(const char* name, CUstream stream) {
        CUfunction function = nullptr;
        CUdeviceptr more = memory;
        void* params[] = {&memory, &more, &more, &count};
        MUST(CALL(cuModuleGetFunction)(&function, module, name) == CUDA_SUCCESS);
        MUST(CALL(cuLaunchKernel)(function, 4, 1, 1, 64, 1, 1, 0, stream, params, nullptr) == CUDA_SUCCESS);
    }

    static constexpr std::size_t kBytes = 4 << 20;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUdeviceptr memory = 0;
    int count = 16;
};

template <class F>
double seconds_of(F work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void a_kernel_past_its_limit() {
    setenv("GPUPOOL_SOFTGPU_KERNEL_LIMIT_MS", "200", 1);
    Work work;
    int value = 0;
    MUST(CALL(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0) == CUDA_SUCCESS && value == 1);
    work.launch("vector_add", nullptr);
    MUST(CALL(cuCtxSynchronize)() == CUDA_SUCCESS);
    work.launch("for_ever", nullptr);
    CUresult result = CUDA_SUCCESS;
    const double seconds = seconds_of([&] { result = CALL(cuCtxSynchronize)(); });
    MUST(result == CUDA_ERROR_LAUNCH_TIMEOUT);
    MUST(seconds > 0.1);
    MUST(CALL(cuMemAlloc_v2)(&work.memory, 4) == CUDA_ERROR_LAUNCH_TIMEOUT);
    std::_Exit(kPassed);
}

void kernels_that_take_their_time() {
    setenv("GPUPOOL_SOFTGPU_KERNEL_DURATION_US", "300000", 1);
    Work work;
    CUstream streams[2] = {};
    for (CUstream& stream : streams) {
        MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    }
    const double in_order = seconds_of([&] {
        work.launch("vector_add", streams[0]);
        work.launch("vector_add", streams[0]);
        MUST(CALL(cuCtxSynchronize)() == CUDA_SUCCESS);
    });
    MUST(in_order >= 0.6);
    const double side_by_side = seconds_of([&] {
        for (const CUstream stream : streams) {
            work.launch("vector_add", stream);
        }
        MUST(CALL(cuCtxSynchronize)() == CUDA_SUCCESS);
    });
    MUST(side_by_side >= 0.3 && side_by_side < in_order);
    // Destroying a context does not wait for a running kernel's duration.
    work.launch("vector_add", streams[0]);
    work.launch("vector_add", streams[0]);
    MUST(seconds_of([&] { CALL(cuCtxDestroy_v2)(work.context); }) < 0.5);
    std::_Exit(kPassed);
}

void copies_at_a_rate() {
    setenv("GPUPOOL_SOFTGPU_COPY_RATE", "16M", 1);
    Work work;
    std::vector<char> host(Work::kBytes);
    const double there = seconds_of([&] { CALL(cuMemcpyHtoD_v2)(work.memory, host.data(), host.size()); });
    MUST(there >= 0.25);
    const double within = seconds_of([&] {
        CALL(cuMemcpyDtoD_v2)(work.memory, work.memory + Work::kBytes / 2, Work::kBytes / 2);
        CALL(cuCtxSynchronize)();
    });
    MUST(within < there);
    // With unified addressing, as cudaMemcpyDefault uses it, pinned memory still counts as the host's.
    void* pinned = nullptr;
    MUST(CALL(cuMemHostAlloc)(&pinned, Work::kBytes, 0) == CUDA_SUCCESS);
    const double unified = seconds_of([&] {
        CALL(cuMemcpyAsync)(work.memory, reinterpret_cast<CUdeviceptr>(pinned), Work::kBytes, nullptr);
        CALL(cuCtxSynchronize)();
    });
    MUST(unified >= 0.25);
    std::_Exit(kPassed);
}

void values_that_are_none() {
    setenv("GPUPOOL_SOFTGPU_DEVICES", "2x", 1);
    setenv("GPUPOOL_SOFTGPU_MEMORY", "16Q", 1);
    setenv("GPUPOOL_SOFTGPU_KERNEL_LIMIT_MS", "-1", 1);
    setenv("GPUPOOL_SOFTGPU_COPY_RATE", "fast", 1);
    int count = 0;
    MUST(CALL(cuInit)(0) == CUDA_SUCCESS);
    MUST(CALL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count == 1);
    std::size_t bytes = 0;
    MUST(CALL(cuDeviceTotalMem_v2)(&bytes, 0) == CUDA_SUCCESS && bytes == std::size_t{4} << 30);
    std::_Exit(kPassed);
}

// More than any machine has.
void too_much_host_memory() {
    Work work;
    void* pinned = nullptr;
    MUST(CALL(cuMemHostAlloc)(&pinned, std::size_t{32} << 40, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(CALL(cuMemHostAlloc)(&pinned, std::size_t{1} << 20, 0) == CUDA_SUCCESS);
    std::_Exit(kPassed);
}

#define EXPECT_TO_HOLD(function, said)              \
    GTEST_FLAG_SET(death_test_style, "threadsafe"); \
    EXPECT_EXIT(function(), ::testing::ExitedWithCode(kPassed), said)

TEST(SettingsDeathTest, KernelAboveItsTimeLimitTimesOut) {
    EXPECT_TO_HOLD(a_kernel_past_its_limit, "timeout: it ran for longer");
}

TEST(SettingsDeathTest, KernelsTakeTheSetTimeAndStreamsOverlap) {
    EXPECT_TO_HOLD(kernels_that_take_their_time, "");
}

TEST(SettingsDeathTest, CopiesTakeTheSetTime) {
    EXPECT_TO_HOLD(copies_at_a_rate, "");
}

TEST(SettingsDeathTest, InvalidValueIsReported) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(values_that_are_none(), ::testing::ExitedWithCode(kPassed),
                "DEVICES='2x' is not.*\n.*MEMORY='16Q' is not.*\n.*LIMIT_MS='-1' is not.*\n.*COPY_RATE='fast' is not");
}

TEST(SettingsDeathTest, HostMemoryIsBounded) {
    EXPECT_TO_HOLD(too_much_host_memory, "");
}

}  // namespace
}  // namespace gpupool::softgpu_test
