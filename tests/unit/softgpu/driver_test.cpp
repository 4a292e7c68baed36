// The driver's behaviour around kernels: asynchrony, errors, memory, handles.
#include "tests/unit/softgpu/driver.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/support/event_counter.h"
#include "tests/support/waiting.h"
#include "tests/unit/thread_shortage.h"

namespace gpupool::softgpu_test {
namespace {

TEST_F(DriverTest, EveryDeviceAttributeHasAValue) {
    for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
        int value = -12345;
        OK(CALL(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(attribute), 0));
        ASSERT_NE(-12345, value) << attribute;
    }
    char name[64];
    OK(CALL(cuDeviceGetName)(name, sizeof name, 0));
    EXPECT_STREQ("gpupool software GPU", name);
    CUdevice device = 7;
    EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, CALL(cuDeviceGet)(&device, 1));
}

// The kernel spins on stream 1; the launch must have returned, and a copy on stream 2 must complete.
TEST_F(DriverTest, LaunchIsAsynchronousAndStreamsAreIndependent) {
    CUstream first = nullptr, second = nullptr;
    OK(CALL(cuStreamCreate)(&first, CU_STREAM_NON_BLOCKING));
    OK(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr flag = upload(std::vector<int>{0}), out = upload(std::vector<int>{0});
    OK(launch("wait_for_flag", {1}, {32}, 0, first, flag, out));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, CALL(cuStreamQuery)(first));
    OK(CALL(cuMemsetD32Async)(flag, 5, 1, second));
    OK(CALL(cuStreamSynchronize)(first));
    OK(CALL(cuStreamQuery)(first));
    EXPECT_EQ(5, download<int>(out, 1)[0]);
}

TEST_F(DriverTest, HostFlagReleasesAKernel) {
    void* host = nullptr;
    OK(CALL(cuMemHostAlloc)(&host, 4, 0));
    *static_cast<volatile int*>(host) = 0;
    const CUdeviceptr flag = reinterpret_cast<CUdeviceptr>(host), out = upload(std::vector<int>{0});
    OK(launch("wait_for_flag", {1}, {1}, 0, CU_STREAM_PER_THREAD, flag, out));
    __atomic_store_n(static_cast<int*>(host), 9, __ATOMIC_SEQ_CST);
    OK(CALL(cuCtxSynchronize)());
    EXPECT_EQ(9, download<int>(out, 1)[0]);
}

TEST_F(DriverTest, LegacyStreamWaitsForBlockingStreams) {
    CUstream blocking = nullptr, other = nullptr;
    OK(CALL(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    OK(CALL(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr out = upload(std::vector<int>{0});
    test::EventCounter go;
    OK(CALL(cuLaunchHostFunc)(
        blocking, [](void* event) { EXPECT_TRUE(static_cast<test::EventCounter*>(event)->wait_for(1)); }, &go));
    OK(CALL(cuMemsetD32Async)(out, 3, 1, blocking));
    CUevent event = nullptr;
    OK(CALL(cuEventCreate)(&event, 0));
    OK(CALL(cuEventRecord)(event, nullptr));
    OK(CALL(cuStreamSynchronize)(other));
    EXPECT_TRUE(test::wait_until_others_sleep());
    EXPECT_EQ(CUDA_ERROR_NOT_READY, CALL(cuEventQuery)(event));
    go.add();
    OK(CALL(cuEventSynchronize)(event));
    EXPECT_EQ(3, download<int>(out, 1)[0]);
}

TEST_F(DriverTest, EventsOrderStreamsAndMeasureTime) {
    CUstream first = nullptr, second = nullptr;
    OK(CALL(cuStreamCreate)(&first, CU_STREAM_NON_BLOCKING));
    OK(CALL(cuStreamCreate)(&second, CU_STREAM_NON_BLOCKING));
    CUevent begin = nullptr, end = nullptr;
    OK(CALL(cuEventCreate)(&begin, 0));
    OK(CALL(cuEventCreate)(&end, 0));
    int order[2] = {0, 0};
    static int position;
    position = 0;
    const auto note = [](void* slot) { *static_cast<int*>(slot) = ++position; };
    const auto before = std::chrono::steady_clock::now();
    OK(CALL(cuEventRecord)(begin, first));
    // The work ends only after its end was requested, however slow this thread is, and takes a measurable time.
    using Clock = std::chrono::steady_clock;
    using Milliseconds = std::chrono::duration<float, std::milli>;
    static std::atomic<bool> asked;
    static Milliseconds took;
    asked = false;
    OK(CALL(cuLaunchHostFunc)(
        first,
        [](void*) {
            const Clock::time_point begun = Clock::now();
            while (!asked || Clock::now() - begun < std::chrono::milliseconds(5)) {
                std::this_thread::yield();
            }
            took = Clock::now() - begun;
        },
        nullptr));
    OK(CALL(cuLaunchHostFunc)(first, note, &order[0]));
    OK(CALL(cuEventRecord)(end, first));
    OK(CALL(cuStreamWaitEvent)(second, end, 0));
    OK(CALL(cuLaunchHostFunc)(second, note, &order[1]));
    float milliseconds = 0;
    EXPECT_EQ(CUDA_ERROR_NOT_READY, CALL(cuEventElapsedTime_v2)(&milliseconds, begin, end));
    asked = true;
    OK(CALL(cuStreamSynchronize)(second));
    EXPECT_EQ(1, order[0]);
    EXPECT_EQ(2, order[1]);
    OK(CALL(cuEventElapsedTime_v2)(&milliseconds, begin, end));
    const Milliseconds at_most = Clock::now() - before;
    EXPECT_GE(milliseconds, took.count() * 0.99f);
    EXPECT_LE(milliseconds, at_most.count() * 1.01f);
}

TEST_F(DriverTest, WorkOfOneStreamRunsInOrder) {
    const int n = 2500;  // more than a stream's queue takes
    const CUdeviceptr log = upload(std::vector<int>(n)), position = upload(std::vector<int>{0});
    CUstream stream = nullptr;
    OK(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < n; ++i) {
        OK(launch("append", {1}, {1}, 0, stream, log, position, i));
    }
    OK(CALL(cuStreamSynchronize)(stream));
    const auto entries = download<int>(log, n);
    for (int i = 0; i < n; ++i) {
        ASSERT_EQ(i, entries[i]);
    }
}

TEST_F(DriverTest, CallsInHostFunctionsAreNotPermitted) {
    CUresult inside = CUDA_SUCCESS;
    OK(CALL(cuLaunchHostFunc)(
        nullptr, [](void* result) { *static_cast<CUresult*>(result) = CALL(cuCtxSynchronize)(); }, &inside));
    OK(CALL(cuCtxSynchronize)());
    EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, inside);
}

TEST_F(DriverTest, IllegalAddressPoisonsTheContext) {
    const CUdeviceptr nowhere = 0x1000;
    OK(launch("store_at", {1}, {1}, 0, nullptr, nowhere));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuCtxSynchronize)());
    CUdeviceptr more = 0;
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuMemAlloc_v2)(&more, 16));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuCtxSynchronize)());
}

TEST_F(DriverTest, FreedAndMisalignedMemoryIsDetected) {
    const CUdeviceptr block = upload(std::vector<int>(4));
    const CUdeviceptr odd = block + 2;
    OK(launch("store_at", {1}, {1}, 0, nullptr, odd));
    EXPECT_EQ(CUDA_ERROR_MISALIGNED_ADDRESS, CALL(cuCtxSynchronize)());
}

TEST_F(DriverTest, TrapIsALaunchFailure) {
    OK(launch("trap_now", {1}, {1}, 0, nullptr));
    EXPECT_EQ(CUDA_ERROR_LAUNCH_FAILED, CALL(cuCtxSynchronize)());
}

TEST_F(DriverTest, LaunchesAreValidated) {
    const CUdeviceptr out = upload(std::vector<int>(4));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch("store_at", {1}, {1025}, 0, nullptr, out));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch("store_at", {0}, {1}, 0, nullptr, out));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch("store_at", {1}, {1}, 49153, nullptr, out));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, launch("store_at", {1}, {1}, 0, reinterpret_cast<CUstream>(0xABCDEF), out));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CALL(cuLaunchKernel)(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    CUfunction missing = nullptr;
    EXPECT_EQ(CUDA_ERROR_NOT_FOUND, CALL(cuModuleGetFunction)(&missing, module_, "missing"));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemFree_v2)(0x1234));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CALL(cuEventQuery)(reinterpret_cast<CUevent>(this)));
}

TEST_F(DriverTest, MemoryIsCountedAndBounded) {
    size_t before = 0, after = 0, total = 0;
    OK(CALL(cuMemGetInfo_v2)(&before, &total));
    CUdeviceptr block = 0;
    OK(CALL(cuMemAlloc_v2)(&block, std::size_t{1} << 30));
    OK(CALL(cuMemGetInfo_v2)(&after, &total));
    EXPECT_EQ(std::size_t{1} << 30, before - after);
    CUdeviceptr too_much = 0;
    EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, CALL(cuMemAlloc_v2)(&too_much, total));
    OK(CALL(cuMemFree_v2)(block));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemFree_v2)(block));
    OK(CALL(cuMemAllocAsync)(&block, 1000, nullptr));
    OK(CALL(cuMemFreeAsync)(block, nullptr));
    OK(CALL(cuCtxSynchronize)());
    OK(CALL(cuMemGetInfo_v2)(&after, &total));
    EXPECT_EQ(before, after);
}

TEST_F(DriverTest, MappedMemoryAtARequestedAddress) {
    const size_t size = std::size_t{4} << 20;
    void* hole = mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole, 2 * size);
    const CUdeviceptr wanted = (reinterpret_cast<CUdeviceptr>(hole) + (2U << 20) - 1) / (2U << 20) * (2U << 20);
    CUdeviceptr at = 0, again = 0;
    OK(CALL(cuMemAddressReserve)(&at, size, 0, wanted, 0));
    EXPECT_EQ(wanted, at);
    OK(CALL(cuMemAddressReserve)(&again, size, 0, wanted, 0));
    EXPECT_NE(wanted, again);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle memory = 0;
    OK(CALL(cuMemCreate)(&memory, size, &properties, 0));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemMap)(at, size / 2, size / 2, memory, 0)) << "an offset must be 0";
    OK(CALL(cuMemMap)(at, size, 0, memory, 0));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemsetD32_v2)(at, 1, 1)) << "no access was given yet";
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(CALL(cuMemSetAccess)(at, size, &access, 1));
    OK(CALL(cuMemsetD32_v2)(at, 77, size / 4));
    int descriptor = -1;
    OK(CALL(cuMemExportToShareableHandle)(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(CALL(cuCtxSynchronize)());
    const auto* shared = static_cast<const int*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0));
    EXPECT_EQ(77, shared[size / 4 - 1]);
    munmap(const_cast<int*>(shared), size);
    close(descriptor);
    OK(CALL(cuMemUnmap)(at, size));
    OK(launch("store_at", {1}, {1}, 0, nullptr, at));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuCtxSynchronize)());
    OK(CALL(cuMemRelease)(memory));
    OK(CALL(cuMemAddressFree)(at, size));
    OK(CALL(cuMemAddressFree)(again, size));
}

TEST_F(DriverTest, PoolIsBoundedByItsMaximumSize) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.maxSize = 1U << 20;
    CUmemoryPool pool = nullptr;
    CUdeviceptr first = 0, second = 0;
    OK(CALL(cuMemPoolCreate)(&pool, &properties));
    OK(CALL(cuMemAllocFromPoolAsync)(&first, 1U << 20, pool, nullptr));
    EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, CALL(cuMemAllocFromPoolAsync)(&second, 512, pool, nullptr));
    OK(CALL(cuMemFreeAsync)(first, nullptr));
    OK(CALL(cuCtxSynchronize)());
    OK(CALL(cuMemAllocFromPoolAsync)(&second, 512, pool, nullptr));
    OK(CALL(cuMemPoolDestroy)(pool));
}

// The process continues, and every wait returns.
TEST_F(DriverTest, ContextFailsWithoutAThreadForAStream) {
    CUstream stream = nullptr;
    OK(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr memory = 0;
    OK(CALL(cuMemAlloc_v2)(&memory, 4));
    {
        const gpupool::test::ThreadShortage shortage;
        OK(CALL(cuMemsetD32Async)(memory, 1, 1, stream));
        EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, CALL(cuStreamSynchronize)(stream));
    }
    EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, CALL(cuCtxSynchronize)());
}

TEST_F(DriverTest, UnknownTargetsAndTooMuchSharedMemoryAreRefused) {
    const auto load = [](const std::string& target, const std::string& shared) {
        CUmodule module = nullptr;
        return CALL(cuModuleLoadData)(
            &module, (".version 8.0\n.target " + target + "\n.address_size 64\n.visible .entry k() { .shared .b8 s[" +
                      shared + "]; .reg .b32 %a; mov.u32 %a, s; st.shared.b32 [%a], 1; ret; }\n")
                         .c_str());
    };
    for (const char* target : {"sm_52", "sm_75", "sm_90", "sm_90a"}) {
        EXPECT_EQ(CUDA_SUCCESS, load(target, "49152"));
    }
    for (const char* target : {"sm_100", "sm_120a", "sm_80a", "sm_90f", "sm_200", "compute_90"}) {
        EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(target, "4")) << target;
    }
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load("sm_90", "49156")) << "static shared memory";
}

TEST_F(DriverTest, UnsupportedImagesAreExplained) {
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    CUmodule module = nullptr;
    const std::string cubin = file_bytes(GPUPOOL_SOFTGPU_KERNELS_CUBIN);
    EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, CALL(cuModuleLoadDataEx)(&module, cubin.data(), 2, options, values));
    EXPECT_NE(nullptr, strstr(log, "machine code for sm_90")) << log;
    values[1] = reinterpret_cast<void*>(sizeof log);
    const std::string newer = file_bytes(GPUPOOL_SOFTGPU_KERNELS_NEWER_FATBIN);
    EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, CALL(cuModuleLoadDataEx)(&module, newer.data(), 2, options, values));
    EXPECT_NE(nullptr, strstr(log, "PTX for compute_100")) << log;
    EXPECT_EQ(nullptr, strstr(log, "machine code")) << log;
    values[1] = reinterpret_cast<void*>(sizeof log);
    const char* text =
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<2>;\nmagic.b32 %r1, 1;\nret;\n}\n";
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, CALL(cuModuleLoadDataEx)(&module, text, 2, options, values));
    EXPECT_NE(nullptr, strstr(log, "line 7")) << log;
    EXPECT_NE(nullptr, strstr(log, "magic.b32")) << log;
}

TEST_F(DriverTest, DestroyingAContextEndsAnEndlessKernel) {
    CUcontext doomed = nullptr;
    OK(CALL(cuCtxCreate_v2)(&doomed, 0, 0));
    CUmodule module = nullptr;
    OK(CALL(cuModuleLoadData)(&module, file_bytes(GPUPOOL_SOFTGPU_KERNELS_PTX).c_str()));
    CUfunction function = nullptr;
    OK(CALL(cuModuleGetFunction)(&function, module, "for_ever"));
    CUdeviceptr flag = upload(std::vector<int>{0});
    void* params[] = {&flag};
    OK(CALL(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    OK(CALL(cuCtxDestroy_v2)(doomed));
    OK(CALL(cuCtxSynchronize)());  // the context below is current again and works
}

// Runs in a process of its own: starts an endless kernel and exits normally.
void launch_for_ever_and_exit() {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUdeviceptr flag = 0;
    void* params[] = {&flag};
    CUstream other = nullptr;
    int runs = 0;
    CALL(cuInit)(0);
    CALL(cuCtxCreate_v2)(&context, 0, 0);
    CALL(cuModuleLoadData)(&module, file_bytes(GPUPOOL_SOFTGPU_KERNELS_PTX).c_str());
    CALL(cuModuleGetFunction)(&function, module, "for_ever");
    CALL(cuMemAlloc_v2)(&flag, 4);
    CALL(cuMemsetD32_v2)(flag, 0, 1);
    CALL(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING);
    const bool launched =
        CALL(cuLaunchKernel)(function, 64, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr) == CUDA_SUCCESS;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (runs == 0 && std::chrono::steady_clock::now() < end) {
        CALL(cuMemcpyDtoHAsync_v2)(&runs, flag, sizeof runs, other);
        CALL(cuStreamSynchronize)(other);
    }
    std::exit(launched && runs == 1 && CALL(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY ? 7 : 1);
}

TEST(ProcessDeathTest, ExitsWithAnEndlessKernel) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(launch_for_ever_and_exit(), ::testing::ExitedWithCode(7), "");
}

// Checks results and prints the speed. A limit on the speed would only measure the machine's load.
TEST_F(DriverTest, IntegerLoops) {
    const unsigned rounds = 1000;
    const CUdeviceptr out = upload(std::vector<unsigned>(1024));
    const auto begin = std::chrono::steady_clock::now();
    OK(launch("integers", {4}, {256}, 0, nullptr, out, rounds));
    OK(CALL(cuCtxSynchronize)());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    // At least ten PTX instructions per round and thread, however nvcc unrolls.
    const double per_second = 1024.0 * rounds * 10 / seconds.count();
    RecordProperty("million_instructions_per_second", static_cast<int>(per_second / 1e6));
    std::printf("%.0f million PTX instructions per second\n", per_second / 1e6);
    const auto results = download<unsigned>(out, 1024);
    for (unsigned t = 0; t < 1024; ++t) {
        unsigned a = t % 256 + 1, b = t / 256 + 7, c = 12345;
        for (unsigned i = 0; i < rounds; ++i) {
            a = a * 1664525 + b;
            b ^= a >> 7;
            c += b & a;
            a += c << 3;
            b = b * 22695477 + 1;
            c ^= a;
        }
        ASSERT_EQ(a ^ b ^ c, results[t]) << t;
    }
}

}  // namespace
}  // namespace gpupool::softgpu_test
