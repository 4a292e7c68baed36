// Calls that few programs make and that belong to no other program here: queries of devices, settings of contexts,
// pools found by location, attributes of streams, captures into an existing graph, profiling, loading of functions.
#include <cudaProfiler.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

// Some of these calls are deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using namespace gpupool::programs;

namespace {

int attribute_of(CUdevice device, CUdevice_attribute attribute) {
    int value = -1;
    DRIVER_OK(cuDeviceGetAttribute(&value, attribute, device));
    return value;
}

void devices(CUdevice device) {
    int major = 0, minor = 0;
    DRIVER_OK(cuDeviceComputeCapability(&major, &minor, device));
    check(major == attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) &&
              minor == attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
          "compute capability %d.%d", major, minor);
    CUdevprop properties{};
    DRIVER_OK(cuDeviceGetProperties(&properties, device));
    check(properties.maxThreadsPerBlock == attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) &&
              properties.maxGridSize[0] == attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) &&
              properties.sharedMemPerBlock == attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) &&
              properties.SIMDWidth == 32 &&
              properties.clockRate == attribute_of(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
          "the properties of before CUDA 5 are the attributes");
    int access = -1;
    DRIVER_OK(cuDeviceCanAccessPeer(&access, device, device));
    check(access == 0, "a device is no peer of itself");
    int affinity = -1;
    DRIVER_OK(cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device));
    check(affinity == 0 || affinity == 1, "execution affinity is supported: %d", affinity);
    std::array<CUatomicOperation, 3> operations{CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_EXCHANGE,
                                                CU_ATOMIC_OPERATION_CAS};
    std::array<unsigned, 3> capabilities{~0u, ~0u, ~0u};
    DRIVER_OK(cuDeviceGetHostAtomicCapabilities(capabilities.data(), operations.data(), 3, device));
    check(std::count(capabilities.begin(), capabilities.end(), ~0u) == 0, "atomic operations on host memory: %x %x %x",
          capabilities[0], capabilities[1], capabilities[2]);
    const char* text = nullptr;
    DRIVER_OK(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
    check(text != nullptr && std::strcmp(text, "invalid argument") == 0, "an error's description: %s", text);
}

void peers(CUdevice device) {
    int count = 0, reaches = 0;
    DRIVER_OK(cuDeviceGetCount(&count));
    CUcontext own = nullptr, same = nullptr;
    DRIVER_OK(cuCtxCreate(&same, nullptr, 0, device));
    DRIVER_OK(cuCtxCreate(&own, nullptr, 0, device));
    check_result(cuCtxEnablePeerAccess(same, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "access to the same device");
    check_result(cuDeviceGetP2PAttribute(&reaches, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device),
                 CUDA_ERROR_INVALID_DEVICE, "an attribute between a device and itself");
    check_result(cuCtxDisablePeerAccess(same), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "which was not enabled");
    CUdevice other = 0;
    if (count > 1) {
        DRIVER_OK(cuDeviceGet(&other, 1));
        DRIVER_OK(cuDeviceCanAccessPeer(&reaches, device, other));
    }
    if (reaches != 0) {
        int supported = -1;
        DRIVER_OK(cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, other));
        check(supported == 1, "the devices reach each other by attribute too");
        CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
        unsigned capability = ~0u;
        DRIVER_OK(cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, device, other));
        check(capability != ~0u, "atomic operations on a peer's memory: %x", capability);
        CUcontext theirs = nullptr;
        DRIVER_OK(cuCtxCreate(&theirs, nullptr, 0, other));
        DRIVER_OK(cuCtxSetCurrent(own));
        DRIVER_OK(cuCtxEnablePeerAccess(theirs, 0));
        check_result(cuCtxEnablePeerAccess(theirs, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "enabled twice");
        DRIVER_OK(cuCtxDisablePeerAccess(theirs));
        check_result(cuCtxDisablePeerAccess(theirs), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "disabled twice");
        DRIVER_OK(cuCtxDestroy(theirs));
    }
    DRIVER_OK(cuCtxDestroy(own));
    DRIVER_OK(cuCtxDestroy(same));
    DRIVER_OK(cuCtxSetCurrent(nullptr));
}

unsigned flags_of_current() {
    unsigned flags = ~0u;
    DRIVER_OK(cuCtxGetFlags(&flags));
    return flags;
}

void context_settings(CUdevice device) {
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxCreate(&context, nullptr, CU_CTX_SCHED_SPIN, device));
    DRIVER_OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    check((flags_of_current() & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD, "flags that were changed");
    DRIVER_OK(cuCtxSetFlags(CU_CTX_SYNC_MEMOPS));
    check(flags_of_current() == CU_CTX_SYNC_MEMOPS, "changed again: %x", flags_of_current());
    check_result(cuCtxSetFlags(3), CUDA_ERROR_INVALID_VALUE, "two policies of waiting at once");
    CUexecAffinityParam affinity{};
    DRIVER_OK(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    check(affinity.param.smCount.val ==
              static_cast<unsigned>(attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)),
          "it has all multiprocessors: %u", affinity.param.smCount.val);
    CUsharedconfig banks{};
    DRIVER_OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
    DRIVER_OK(cuCtxGetSharedMemConfig(&banks));
    check(banks == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, "shared memory's banks have 4 bytes whatever one sets: %d",
          banks);
    DRIVER_OK(cuCtxResetPersistingL2Cache());
    const Module module(kernels_ptx().data);
    DRIVER_OK(cuFuncSetSharedMemConfig(module.function("store_word"), CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuCtxDestroy(context));
}

void primary_flags() {
    DRIVER_OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    check(flags_of_current() == (CU_CTX_SCHED_YIELD | CU_CTX_MAP_HOST), "a primary context maps host memory: %x",
          flags_of_current());
    DRIVER_OK(cuCtxSetFlags(CU_CTX_SCHED_AUTO));
}

void profiler() {
    DRIVER_OK(cuProfilerStart());
    DRIVER_OK(cuProfilerStart());
    DRIVER_OK(cuProfilerStop());
    DRIVER_OK(cuProfilerStop());
    check_result(cuProfilerInitialize("settings", "output", CU_OUT_CSV), CUDA_ERROR_NOT_SUPPORTED,
                 "profiling by the driver itself, which ended with CUDA 11");
}

void flush() {
    DRIVER_OK(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
    DRIVER_OK(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES));
    check_result(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                            static_cast<CUflushGPUDirectRDMAWritesScope>(7)),
                 CUDA_ERROR_INVALID_VALUE, "a scope that is none");
}

void pools(CUdevice device) {
    CUmemLocation here{};
    here.type = CU_MEM_LOCATION_TYPE_DEVICE;
    here.id = device;
    CUmemoryPool by_device = nullptr, by_location = nullptr, own = nullptr;
    DRIVER_OK(cuDeviceGetDefaultMemPool(&by_device, device));
    DRIVER_OK(cuMemGetDefaultMemPool(&by_location, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    check(by_device == by_location, "the default pool by device and by location");
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = here;
    DRIVER_OK(cuMemPoolCreate(&own, &properties));
    DRIVER_OK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    DRIVER_OK(cuMemGetMemPool(&by_location, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    DRIVER_OK(cuDeviceGetMemPool(&by_device, device));
    check(by_location == own && by_device == own, "the device's pool is the program's own");
    CUdeviceptr block = 0;
    CUmemoryPool of_block = nullptr;
    DRIVER_OK(cuMemAllocAsync(&block, 1000, nullptr));
    DRIVER_OK(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    check(of_block == own, "allocations come from it");
    DRIVER_OK(cuMemFreeAsync(block, nullptr));
    DRIVER_OK(cuMemGetDefaultMemPool(&by_location, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    DRIVER_OK(cuDeviceSetMemPool(device, by_location));
    DRIVER_OK(cuDeviceGetMemPool(&by_device, device));
    check(by_device == by_location, "the default pool is the device's again");

    CUmemAccess_flags flags{};
    DRIVER_OK(cuMemPoolGetAccess(&flags, own, &here));
    check(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "a pool's device may read and write it");
    CUmemAccessDesc access{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_OK(cuMemPoolSetAccess(own, &access, 1));
    DRIVER_OK(cuMemAllocFromPoolAsync(&block, 1000, own, nullptr));
    CUmemPoolPtrExportData data{};
    check_result(cuMemPoolExportPointer(&data, block), CUDA_ERROR_INVALID_VALUE,
                 "exporting from a pool without handles");
    DRIVER_OK(cuMemFreeAsync(block, nullptr));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMemPoolDestroy(own));
}

void stream_attributes() {
    CUstream from = nullptr, to = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&from, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&to, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&block, 1 << 16));
    CUstreamAttrValue value{};
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    DRIVER_OK(cuStreamSetAttribute(from, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    value = {};
    value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(block);
    value.accessPolicyWindow.num_bytes = 1 << 16;
    value.accessPolicyWindow.hitRatio = 0.5f;
    value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
    DRIVER_OK(cuStreamSetAttribute(from, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    DRIVER_OK(cuStreamCopyAttributes(to, from));
    for (const CUstream stream : {from, to}) {
        const char* which = stream == from ? "set" : "copied";
        std::memset(&value, 0, sizeof value);
        DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
        check(value.syncPolicy == CU_SYNC_POLICY_YIELD, "the policy of waiting, %s: %d", which, value.syncPolicy);
        std::memset(&value, 0, sizeof value);
        DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
        check(value.accessPolicyWindow.base_ptr == reinterpret_cast<void*>(block) &&
                  value.accessPolicyWindow.hitRatio == 0.5f,
              "the access window, %s: %p", which, value.accessPolicyWindow.base_ptr);
    }
    value = {};
    value.priority = -2;
    DRIVER_OK(cuStreamSetAttribute(from, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    DRIVER_OK(cuStreamCopyAttributes(to, from));
    for (const CUstream stream : {from, to}) {
        int priority = 0;
        DRIVER_OK(cuStreamGetPriority(stream, &priority));
        check(priority == -2, "the priority that was %s: %d", stream == from ? "set" : "copied", priority);
    }
    check_result(cuStreamSetAttribute(from, static_cast<CUstreamAttrID>(99), &value), CUDA_ERROR_INVALID_VALUE,
                 "an attribute that is none");
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(from));
    DRIVER_OK(cuStreamDestroy(to));
}

size_t dependencies_of(CUstream stream, const CUgraphNode** nodes, CUgraph* graph) {
    CUstreamCaptureStatus status{};
    size_t count = 0;
    DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, nullptr, graph, nodes, nullptr, &count));
    return count;
}

void capture_dependencies() {
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    CUgraph graph = nullptr, captured = nullptr;
    const CUgraphNode* last = nullptr;
    CUgraphNode branch = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&block, 16));
    DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(cuMemsetD32Async(block, 1, 1, stream));
    check(dependencies_of(stream, &last, &graph) == 1, "one node so far");
    DRIVER_OK(cuGraphAddEmptyNode(&branch, graph, nullptr, 0));
    DRIVER_OK(cuStreamUpdateCaptureDependencies(stream, &branch, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    check(dependencies_of(stream, &last, &graph) == 2, "with a branch that the program added");
    DRIVER_OK(cuMemsetD32Async(block + 4, 2, 1, stream));
    size_t edges = 0;
    DRIVER_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    check(edges == 2, "the next node depends on both");
    DRIVER_OK(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    check(dependencies_of(stream, &last, &graph) == 0, "the next one on none");
    DRIVER_OK(cuStreamUpdateCaptureDependencies(stream, &branch, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    DRIVER_OK(cuStreamEndCapture(stream, &captured));
    check_result(cuStreamUpdateCaptureDependencies(stream, &branch, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
                 CUDA_ERROR_ILLEGAL_STATE, "without a capture");
    DRIVER_OK(cuGraphDestroy(captured));

    DRIVER_OK(cuMemsetD8(block, 0, 16));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphAddEmptyNode(&branch, graph, nullptr, 0));
    DRIVER_OK(cuStreamBeginCaptureToGraph(stream, graph, &branch, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DRIVER_OK(cuMemsetD32Async(block, 7, 2, stream));
    DRIVER_OK(cuMemsetD32Async(block + 8, 8, 2, stream));
    DRIVER_OK(cuStreamEndCapture(stream, &captured));
    size_t nodes = 0;
    DRIVER_OK(cuGraphGetNodes(graph, nullptr, &nodes));
    DRIVER_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    check(captured == graph && nodes == 3 && edges == 2, "captured into the program's graph: %zu nodes, %zu edges",
          nodes, edges);
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    std::array<unsigned, 4> words{};
    DRIVER_OK(cuMemcpyDtoH(words.data(), block, sizeof words));
    check(words == std::array<unsigned, 4>{7, 7, 8, 8}, "which does what was captured");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(stream));
}

void unusual_answers(CUdevice device) {
    const Module module(kernels_ptx().data);
    CUfunctionLoadingState state{};
    CUfunction function = module.function("store_word"), of_kernel = nullptr;
    DRIVER_OK(cuFuncIsLoaded(&state, function));
    check(state == CU_FUNCTION_LOADING_STATE_LOADED, "a function that was found by its name is loaded");
    DRIVER_OK(cuFuncLoad(function));
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    check_result(cuFuncIsLoaded(&state, reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_INVALID_HANDLE,
                 "a kernel is no function");
    check_result(cuFuncLoad(reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_INVALID_HANDLE, "which one could load");
    DRIVER_OK(cuKernelGetFunction(&of_kernel, kernel));
    DRIVER_OK(cuFuncIsLoaded(&state, of_kernel));
    check(state == CU_FUNCTION_LOADING_STATE_LOADED, "its function is");
    void* unified = nullptr;
    check_result(cuLibraryGetUnifiedFunction(&unified, library, "store_word"), CUDA_ERROR_INVALID_VALUE,
                 "a library without unified functions");
    DRIVER_OK(cuLibraryUnload(library));

    char luid[8] = {};
    unsigned mask = 0;
    check_result(cuDeviceGetLuid(luid, &mask, device), CUDA_ERROR_NOT_SUPPORTED, "Windows' identifier of a device");
    check_result(cuDeviceGetLuid(nullptr, &mask, device), CUDA_ERROR_INVALID_VALUE, "without room for it");
    int algorithms = -1;
    DRIVER_OK(cuDeviceGetAttribute(&algorithms, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, device));
    if (algorithms == 0) {
        CUmemDecompressParams parameters{};
        size_t index = 77;
        check_result(cuMemBatchDecompressAsync(&parameters, 1, 0, &index, nullptr), CUDA_ERROR_NOT_SUPPORTED,
                     "decompression without an engine for it");
        check(index == 77, "which concerns none of them");
    }
}

void copies() {
    constexpr size_t kWidth = 64, kHeight = 8, kDepth = 4, kBytes = kWidth * kHeight * kDepth;
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&block, kBytes));
    std::vector<unsigned char> from(kBytes), to(kBytes);
    for (size_t i = 0; i < kBytes; i++) {
        from[i] = static_cast<unsigned char>(i * 7);
    }
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from.data();
    copy.srcPitch = copy.dstPitch = kWidth;
    copy.srcHeight = copy.dstHeight = kHeight;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = block;
    copy.WidthInBytes = kWidth;
    copy.Height = kHeight;
    copy.Depth = kDepth;
    DRIVER_OK(cuMemcpy3D(&copy));
    std::swap(copy.srcMemoryType, copy.dstMemoryType);
    copy.srcDevice = block;
    copy.dstHost = to.data();
    copy.WidthInBytes = kWidth / 2;
    DRIVER_OK(cuMemcpy3DAsync(&copy, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    bool same = true;
    for (size_t i = 0; i < kBytes; i++) {
        same &= to[i] == (i % kWidth < kWidth / 2 ? from[i] : 0);
    }
    check(same, "half of each row came back");
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("less_used", argc, argv);
    DRIVER_OK(cuInit(0));
    CUdevice device = 0;
    DRIVER_OK(cuDeviceGet(&device, 0));
    program.section("devices", [&] { devices(device); });
    program.section("peers", [&] { peers(device); });
    program.section("context_settings", [&] { context_settings(device); });
    const auto in_context = [&](auto body) {
        return [body] {
            const Device holds;
            body();
        };
    };
    program.section("primary_flags", in_context([] { primary_flags(); }));
    program.section("profiler", in_context([] { profiler(); }));
    program.section("flush", in_context([] { flush(); }));
    program.section("pools", in_context([&] { pools(device); }));
    program.section("stream_attributes", in_context([] { stream_attributes(); }));
    program.section("capture_dependencies", in_context([] { capture_dependencies(); }));
    program.section("unusual_answers", in_context([&] { unusual_answers(device); }));
    program.section("copies", in_context([] { copies(); }));
    return program.finish();
}
