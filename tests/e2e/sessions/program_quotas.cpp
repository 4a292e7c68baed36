// Modes about quotas of device memory. QUOTA is the quota of each device in bytes, HELD what another process holds.
//
//   quota_shown    the quota is the device's size wherever a program looks, and all of it can be allocated
//   quota_devices  each of two devices has a quota of its own, whichever device's stream allocates
//   quota_each     device 0 has QUOTA, device 1 HELD
//   quota_hold     allocates HELD bytes, prints "ready", and frees them when its stdin ends
//   quota_stacks   local memory, stacks and the device's heap count, on two multiprocessors
//   quota_contexts contexts of 20 MiB, except the first, and many streams and nodes of graphs count
//   quota_code     variables of modules and libraries count
//   quota_reuse    what was freed in one size and by one kind of call is available in any other
//   quota_share    another process holds HELD of the quota; when its stdin ends, waits until all of it is available

#include <array>
#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

std::size_t number(const char* variable) {
    const char* const text = std::getenv(variable);
    must(text == nullptr ? CUDA_ERROR_ASSERT : CUDA_SUCCESS, variable);
    return std::strtoull(text, nullptr, 10);
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

int use_each_device() {
    must(driver.cuInit(0), "cuInit");
    for (CUdevice device = 0; device < 2; ++device) {
        const std::size_t quota = number(device == 0 ? "QUOTA" : "HELD");
        std::size_t total = 0;
        must(driver.cuDeviceTotalMem(&total, device), "cuDeviceTotalMem");
        say("total", static_cast<long long>(total));
        expect(total == quota, "cuDeviceTotalMem");
        context_on(device);
        expect_available(quota, "the quota of a device");
    }
    return 0;
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

constexpr std::size_t kMiB = 1u << 20;

// A kernel with `bytes` of local memory for each thread.
CUfunction kernel_with_local(std::size_t bytes) {
    const std::string code =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry deep(.param .u64 unused) {\n"
        ".local .align 4 .b8 array[" +
        std::to_string(bytes) + "];\n.reg .u32 %r<2>;\nmov.u32 %r1, 7;\nst.volatile.local.u32 [array], %r1;\nret;\n}\n";
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    must(driver.cuModuleLoadData(&module, code.c_str()), "cuModuleLoadData");
    must(driver.cuModuleGetFunction(&function, module, "deep"), "cuModuleGetFunction");
    return function;
}

CUresult run(CUfunction function, CUstream stream = nullptr) {
    std::uint64_t unused = 0;
    void* arguments[] = {&unused};
    return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

// Several threads change a limit at the same time. However their calls overlap, the last value is charged, no more.
void change_limits_together(CUcontext context, std::size_t quota) {
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([=] {
            use(context);
            for (std::size_t i = 0; i < 40; ++i) {
                must(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (8 + (i * 7 + thread * 5) % 24) * kMiB),
                     "cuCtxSetLimit");
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    must(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * kMiB), "cuCtxSetLimit");
    expect(free_bytes() == quota - 32 * kMiB, "the last value of a limit");
    must(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), "cuCtxSetLimit");
    expect_available(quota, "after limits that several threads set");
}

// A node of an executable graph gets another kernel, which does not fit, and then its own again.
void change_kernel_of_graph(CUfunction small, CUfunction too_large, CUstream stream) {
    std::uint64_t unused = 0;
    void* arguments[] = {&unused};
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = small;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphExec executable = nullptr;
    must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
    must(driver.cuGraphAddKernelNode(&node, graph, nullptr, 0, &kernel), "cuGraphAddKernelNode");
    must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    const std::size_t before = free_bytes();
    kernel.func = too_large;
    must(driver.cuGraphExecKernelNodeSetParams(executable, node, &kernel), "cuGraphExecKernelNodeSetParams");
    expect(driver.cuGraphLaunch(executable, stream) == CUDA_ERROR_OUT_OF_MEMORY, "a changed graph beyond the quota");
    expect(free_bytes() == before, "the driver gave the room for the change back");
    kernel.func = small;
    must(driver.cuGraphExecKernelNodeSetParams(executable, node, &kernel), "cuGraphExecKernelNodeSetParams");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    must(driver.cuGraphDestroy(graph), "cuGraphDestroy");
}

// The driver makes room for the local memory of all threads that run at once: 2048 on each multiprocessor.
int use_stacks() {
    constexpr std::size_t kThreads = std::size_t{2} * 2048, kOwn = 1024;
    const std::size_t quota = number("QUOTA");
    const CUcontext context = begin();
    const CUfunction small = kernel_with_local(kOwn), first = kernel_with_local(8 * kOwn),
                     second = kernel_with_local(16 * kOwn), third = kernel_with_local(32 * kOwn);
    must(run(small), "a launch");
    expect(free_bytes() == quota, "local memory that every context has");
    must(run(second), "a launch");
    expect(free_bytes() == quota - 15 * kOwn * kThreads, "local memory");
    must(run(first), "a launch");
    expect(run(third) == CUDA_ERROR_OUT_OF_MEMORY, "a launch beyond the quota");
    must(run(second), "a launch after one that failed");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    expect(driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 32 * kOwn) == CUDA_ERROR_OUT_OF_MEMORY, "a stack");
    must(driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kOwn), "cuCtxSetLimit");
    expect_available(quota, "after a smaller stack");
    must(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * kMiB), "cuCtxSetLimit");
    expect(free_bytes() == quota - 32 * kMiB, "the device's heap");
    expect(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 80 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY, "a larger heap");
    must(driver.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), "cuCtxSetLimit");
    change_limits_together(context, quota);
    expect(driver.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0) == CUDA_ERROR_UNSUPPORTED_LIMIT,
           "what all sessions share");
    // The driver makes room when it instantiates a graph, and a graph that does not fit says so at its launch.
    CUstream stream = nullptr, other = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    must(run(third, stream), "a launch in a capture");
    // The client does not ask for room now. The server checks it as well.
    must(run(third, other), "a launch beside a capture");
    must(driver.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    expect(driver.cuStreamSynchronize(other) == CUDA_ERROR_OUT_OF_MEMORY, "a launch that the client does not check");
    expect(free_bytes() == quota, "after a launch that failed");
    must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    expect(driver.cuGraphLaunch(executable, stream) == CUDA_ERROR_OUT_OF_MEMORY, "a graph beyond the quota");
    expect_available(quota, "the driver gave the room for the graph back");
    must(driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    must(driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kOwn), "cuCtxSetLimit");
    expect_available(quota, "after a graph");
    change_kernel_of_graph(small, third, stream);
    return 0;
}

void use_many_streams(std::size_t quota) {
    constexpr std::size_t kStreams = 64;  // more than count as nothing
    std::array<CUstream, kStreams> streams{};
    for (CUstream& stream : streams) {
        must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    expect(free_bytes() < quota, "streams");
    for (const CUstream stream : streams) {
        must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
    for (int i = 0; i < 200; ++i) {
        CUstream stream = nullptr;
        must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    expect(free_bytes() > quota - 32 * kMiB, "streams one after the other");
}

// Beyond the quota the call that creates a stream says so, and streams that were created work.
void create_streams_without_room() {
    constexpr std::size_t kMost = 400;
    CUdeviceptr block = 0;
    must(driver.cuMemAlloc(&block, free_bytes() / (2 * kMiB) * (2 * kMiB)), "cuMemAlloc");
    std::vector<CUstream> streams;
    CUresult result = CUDA_SUCCESS;
    while (streams.size() < kMost && result == CUDA_SUCCESS) {
        CUstream stream = nullptr;
        result = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS) {
            streams.push_back(stream);
        }
    }
    expect(result == CUDA_ERROR_OUT_OF_MEMORY, "a stream without room");
    for (std::size_t i = 0; i < streams.size(); ++i) {
        must(driver.cuMemsetD8Async(block + i, static_cast<unsigned char>(i), 1, streams[i]), "cuMemsetD8Async");
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    std::vector<unsigned char> seen(streams.size());
    must(driver.cuMemcpyDtoH(seen.data(), block, seen.size()), "cuMemcpyDtoH");
    for (std::size_t i = 0; i < streams.size(); ++i) {
        expect(seen[i] == static_cast<unsigned char>(i), "a memset in a stream");
        must(driver.cuStreamDestroy(streams[i]), "cuStreamDestroy");
    }
    must(driver.cuMemFree(block), "cuMemFree");
}

// Default streams of threads are streams as well.
void use_streams_of_threads(CUcontext context) {
    constexpr std::ptrdiff_t kThreads = 100;  // more than the streams before
    CUdeviceptr block = 0;
    must(driver.cuMemAlloc(&block, kMiB), "cuMemAlloc");
    const std::size_t before = free_bytes();
    std::barrier all_have_one(kThreads);
    std::vector<std::thread> threads;
    for (std::ptrdiff_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            use(context);
            must(driver.cuMemsetD8Async(block, 0, kMiB, CU_STREAM_PER_THREAD), "cuMemsetD8Async");
            must(driver.cuStreamSynchronize(CU_STREAM_PER_THREAD), "cuStreamSynchronize");
            all_have_one.arrive_and_wait();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    expect(free_bytes() < before, "default streams of threads");
    must(driver.cuMemFree(block), "cuMemFree");
}

void use_many_nodes() {
    const std::size_t before = free_bytes();
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
    for (int i = 0; i < 6000; ++i) {
        CUgraphNode node = nullptr;
        must(driver.cuGraphAddEmptyNode(&node, graph, nullptr, 0), "cuGraphAddEmptyNode");
    }
    must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    expect(free_bytes() < before, "nodes");
}

int use_contexts() {
    constexpr std::size_t kContext = 20 * kMiB;
    const std::size_t quota = number("QUOTA");
    const CUcontext first = begin();
    expect(free_bytes() == quota, "the first context");
    std::array<CUcontext, 4> more{};
    for (std::size_t i = 0; i < 3; ++i) {
        must(driver.cuCtxCreate(&more[i], nullptr, 0, 0), "cuCtxCreate");
        expect(free_bytes() == quota - (i + 1) * kContext, "another context");
    }
    expect(driver.cuCtxCreate(&more[3], nullptr, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY, "too many contexts");
    for (std::size_t i = 0; i < 3; ++i) {
        must(driver.cuCtxDestroy(more[i]), "cuCtxDestroy");
    }
    use(first);
    expect_available(quota, "after contexts");
    use_many_streams(quota);
    use_many_nodes();
    create_streams_without_room();
    use_streams_of_threads(first);
    return 0;
}

int use_code() {
    const std::size_t quota = number("QUOTA");
    const std::string code =
        ".version 7.0\n.target sm_70\n.address_size 64\n.extern .global .b8 not_here[16777216];\n"
        "/* .global .b8 neither[16777216]; */ .visible .global .align 4 .b8 words[41943040];\n"
        ".visible .entry nothing() { ret; }\n";  // 40 MiB
    const std::string alone = code.substr(0, code.find(".extern")) + code.substr(code.find("/*"));
    begin();
    CUmodule first = nullptr, second = nullptr;
    must(driver.cuModuleLoadData(&first, alone.c_str()), "cuModuleLoadData");
    expect(free_bytes() == quota - 40 * kMiB, "a module's variables");
    expect(driver.cuModuleLoadData(&second, alone.c_str()) == CUDA_ERROR_OUT_OF_MEMORY, "a second module");
    must(driver.cuModuleUnload(first), "cuModuleUnload");
    expect_available(quota, "after a module");
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    for (int i = 0; i < 2; ++i) {
        must(driver.cuLibraryLoadData(&library, alone.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
        must(driver.cuLibraryGetKernel(&kernel, library, "nothing"), "cuLibraryGetKernel");
        must(driver.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
        must(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
        expect(free_bytes() == quota - 40 * kMiB, "a library's variables");
        expect(driver.cuModuleLoadData(&second, alone.c_str()) == CUDA_ERROR_OUT_OF_MEMORY, "beside a library");
        must(driver.cuLibraryUnload(library), "cuLibraryUnload");
        expect_available(quota, "after a library");
    }
    return 0;
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

// Fills the quota with blocks of one size. Frees every second one, then the others.
void fill_and_free(std::size_t quota, std::size_t size, bool of_pool) {
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr block = 0;
    CUresult result = CUDA_SUCCESS;
    while ((result = of_pool ? driver.cuMemAllocAsync(&block, size, nullptr) : driver.cuMemAlloc(&block, size)) ==
           CUDA_SUCCESS) {
        blocks.push_back(block);
    }
    expect(result == CUDA_ERROR_OUT_OF_MEMORY && blocks.size() == quota / size, "blocks of one size fill the quota");
    for (const std::size_t first : {0, 1}) {
        for (std::size_t i = first; i < blocks.size(); i += 2) {
            must(of_pool ? driver.cuMemFreeAsync(blocks[i], nullptr) : driver.cuMemFree(blocks[i]), "free");
        }
    }
}

int reuse() {
    constexpr std::size_t kMiB = 1u << 20;
    const std::size_t quota = number("QUOTA");
    begin();
    for (const std::size_t size : {kMiB / 2, 16 * kMiB, kMiB, quota, 4 * kMiB, 10 * kMiB, kMiB / 2, quota / 2}) {
        for (const bool of_pool : {false, true, false}) {
            fill_and_free(quota, size, of_pool);
        }
        must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
        expect_available(quota, "everything was freed");
    }
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
    if (mode == "quota_each") {
        return use_each_device();
    }
    if (mode == "quota_stacks") {
        return use_stacks();
    }
    if (mode == "quota_contexts") {
        return use_contexts();
    }
    if (mode == "quota_code") {
        return use_code();
    }
    if (mode == "quota_hold") {
        return hold();
    }
    if (mode == "quota_reuse") {
        return reuse();
    }
    return mode == "quota_share" ? share() : -1;
}

}  // namespace gpupool::session_program
