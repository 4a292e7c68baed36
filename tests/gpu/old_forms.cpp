// Old forms of calls that later versions replaced and that the driver still exports: contexts, streams and events,
// memory operations, capture, registered memory, and launches whose parameters the program sets one by one.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

// These calls are deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using namespace gpupool::programs;

namespace {

using CreateContext = CUresult (*)(CUcontext*, unsigned, CUdevice);
using CreateContextFor = CUresult (*)(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice);
using OfContext = CUresult (*)(CUcontext);
using GivesContext = CUresult (*)(CUcontext*);
using OfDevice = CUresult (*)(CUdevice);
using SetFlags = CUresult (*)(CUdevice, unsigned);
using OfStream = CUresult (*)(CUstream);
using OfEvent = CUresult (*)(CUevent);
using Value32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
using Value64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

CUcontext current() {
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    return context;
}

unsigned flags_of_current() {
    unsigned flags = ~0u;
    DRIVER_OK(cuCtxGetFlags(&flags));
    return flags;
}

void contexts(CUdevice device) {
    const auto destroy = exported<OfContext>("cuCtxDestroy");
    CUcontext first = nullptr, second = nullptr, third = nullptr, popped = nullptr;
    DRIVER_OK(exported<CreateContext>("cuCtxCreate")(&first, CU_CTX_SCHED_SPIN, device));
    check(current() == first && (flags_of_current() & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN, "the first form");
    DRIVER_OK(exported<GivesContext>("cuCtxPopCurrent")(&popped));
    check(popped == first && current() == nullptr, "popped");
    DRIVER_OK(exported<OfContext>("cuCtxPushCurrent")(first));
    check(current() == first, "and pushed");
    // The driver makes no other contexts beside one of this form.
    DRIVER_OK(destroy(first));
    check(current() == nullptr, "the current one is destroyed, and popped");

    DRIVER_OK(exported<CreateContext>("cuCtxCreate_v2")(&second, CU_CTX_SCHED_YIELD, device));
    check(current() == second && (flags_of_current() & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD, "the second");
    DRIVER_OK(exported<CreateContextFor>("cuCtxCreate_v3")(&third, nullptr, 0, CU_CTX_SCHED_BLOCKING_SYNC, device));
    check(current() == third && (flags_of_current() & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "the third");

    DRIVER_OK(destroy(third));
    check(current() == second, "the current one is destroyed, and popped");
    DRIVER_OK(destroy(second));
    DRIVER_OK(cuCtxSetCurrent(nullptr));
}

void attached(CUdevice device) {
    CUcontext context = nullptr, seen = nullptr;
    check_result(cuCtxAttach(&seen, 0), CUDA_ERROR_INVALID_CONTEXT, "attaching without a context");
    DRIVER_OK(cuCtxCreate(&context, nullptr, 0, device));
    DRIVER_OK(cuCtxAttach(&seen, 0));
    check(seen == context, "attaching gives the current context");
    DRIVER_OK(cuCtxDetach(context));
    check(current() == context, "detaching leaves a context that is still attached");
    DRIVER_OK(cuCtxDetach(context));
    check(current() == nullptr, "detaching the last time destroys it");
}

void primary(CUdevice device) {
    const auto set_flags = exported<SetFlags>("cuDevicePrimaryCtxSetFlags");
    const auto reset = exported<OfDevice>("cuDevicePrimaryCtxReset");
    const auto release = exported<OfDevice>("cuDevicePrimaryCtxRelease");
    unsigned flags = 0;
    int active = -1;
    DRIVER_OK(set_flags(device, CU_CTX_SCHED_YIELD));
    DRIVER_OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    check((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD && active == 0, "flags of the inactive context (%u)",
          flags);
    CUcontext context = nullptr;
    DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
    DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
    DRIVER_OK(release(device));
    DRIVER_OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    check(active == 1, "released once of two times, it is active");
    DRIVER_OK(reset(device));
    DRIVER_OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    check(active == 0, "reset, it is not");
    DRIVER_OK(release(device));
    DRIVER_OK(release(device));  // one too many, which this form allows
    DRIVER_OK(set_flags(device, CU_CTX_SCHED_AUTO));
}

void streams_and_events() {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuMemAlloc(&block, 4));
    DRIVER_OK(cuMemsetD32Async(block, 77, 1, stream));
    DRIVER_OK(cuEventRecord(event, stream));
    DRIVER_OK(cuEventSynchronize(event));
    DRIVER_OK(exported<OfEvent>("cuEventDestroy")(event));

    DRIVER_OK(exported<OfStream>("cuStreamDestroy")(stream));
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, block, sizeof word));
    check(word == 77, "the destroyed stream's work was done");
    DRIVER_OK(cuMemFree(block));
}

void memory_operations() {
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&block, 64));
    DRIVER_OK(cuMemsetD8(block, 0, 64));
    DRIVER_OK(cuCtxSynchronize());
    check_result(exported<Value32>("cuStreamWriteValue32")(stream, block, 5, CU_STREAM_WRITE_VALUE_DEFAULT),
                 CUDA_ERROR_NOT_SUPPORTED, "the first form of writing, which a driver supports only if told to");
    check_result(exported<Value32>("cuStreamWaitValue32")(stream, block, 5, CU_STREAM_WAIT_VALUE_EQ),
                 CUDA_ERROR_NOT_SUPPORTED, "of waiting");
    const cuuint64_t wide = 0x1234'5678'9abc'def0;
    check_result(exported<Value64>("cuStreamWriteValue64")(stream, block + 8, wide, CU_STREAM_WRITE_VALUE_DEFAULT),
                 CUDA_ERROR_NOT_SUPPORTED, "of writing 64 bits");
    check_result(exported<Value64>("cuStreamWaitValue64")(stream, block + 8, wide, CU_STREAM_WAIT_VALUE_EQ),
                 CUDA_ERROR_NOT_SUPPORTED, "of waiting for 64 bits");
    std::array<CUstreamBatchMemOpParams, 2> operations{};
    operations[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, block + 16, {77}, CU_STREAM_WRITE_VALUE_DEFAULT, 0};
    operations[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, block + 16, {77}, CU_STREAM_WAIT_VALUE_EQ, 0};
    check_result(exported<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp")(stream, 2, operations.data(), 0),
                 CUDA_ERROR_NOT_SUPPORTED, "of a batch");
    DRIVER_OK(cuStreamWriteValue64(stream, block + 8, wide, CU_STREAM_WRITE_VALUE_DEFAULT));
    DRIVER_OK(cuStreamWaitValue64(stream, block + 8, wide, CU_STREAM_WAIT_VALUE_GEQ));
    DRIVER_OK(cuStreamBatchMemOp(stream, 2, operations.data(), 0));
    DRIVER_OK(cuStreamSynchronize(stream));
    std::array<cuuint64_t, 3> words{};
    DRIVER_OK(cuMemcpyDtoH(words.data(), block, sizeof words));
    check(words[0] == 0 && words[1] == wide && words[2] == 77, "the values: %llu, %llx, %llu",
          static_cast<unsigned long long>(words[0]), static_cast<unsigned long long>(words[1]),
          static_cast<unsigned long long>(words[2]));
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(stream));
}

void capture() {
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&block, 8));
    DRIVER_OK(cuMemsetD8(block, 0, 8));
    const auto info = exported<CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>("cuStreamGetCaptureInfo");
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0, same = 0;
    DRIVER_OK(info(stream, &status, &id));
    check(status == CU_STREAM_CAPTURE_STATUS_NONE, "no capture yet");
    DRIVER_OK(exported<OfStream>("cuStreamBeginCapture")(stream));
    DRIVER_OK(info(stream, &status, &id));
    DRIVER_OK(info(stream, &status, &same));
    check(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && id == same, "a capture with an id");
    DRIVER_OK(cuMemsetD32Async(block, 1, 1, stream));
    CUgraph graph = nullptr;
    const CUgraphNode* last = nullptr;
    size_t count = 0;
    DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &count));
    check(count == 1, "the memset is what the next node depends on");
    CUgraphNode behind = nullptr;
    DRIVER_OK(cuGraphAddEmptyNode(&behind, graph, last, count));
    DRIVER_OK(exported<CUresult (*)(CUstream, CUgraphNode*, size_t, unsigned)>("cuStreamUpdateCaptureDependencies")(
        stream, &behind, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &count));
    check(count == 1 && last[0] == behind, "the next node will depend on the empty one");
    DRIVER_OK(cuMemsetD32Async(block + 4, 2, 1, stream));
    CUgraph captured = nullptr;
    DRIVER_OK(cuStreamEndCapture(stream, &captured));
    size_t edges = 0;
    DRIVER_OK(cuGraphGetEdges(captured, nullptr, nullptr, nullptr, &edges));
    check(edges == 2, "and it does: %zu edges", edges);
    DRIVER_OK(cuGraphDestroy(captured));
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(stream));
}

// Nodes without data on their edges.
void graph_nodes() {
    const auto add =
        exported<CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraphNodeParams*)>("cuGraphAddNode");
    CUdeviceptr block = 0;
    CUgraph graph = nullptr;
    CUgraphNode first = nullptr, second = nullptr;
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuMemAlloc(&block, 8));
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUgraphNodeParams parameters{};
    parameters.type = CU_GRAPH_NODE_TYPE_MEMSET;
    parameters.memset = {block, 0, 5, 4, 2, 1, nullptr};
    DRIVER_OK(add(&first, graph, nullptr, 0, &parameters));
    parameters.memset = {block, 0, 6, 4, 1, 1, nullptr};
    DRIVER_OK(add(&second, graph, &first, 1, &parameters));
    size_t edges = 0;
    DRIVER_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    check(edges == 1, "the second node depends on the first: %zu edges", edges);
    check_result(add(&second, graph, nullptr, 1, &parameters), CUDA_ERROR_INVALID_VALUE, "no dependencies, but one");
    check_result(add(&second, graph, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE, "no parameters");
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, nullptr));
    std::array<unsigned, 2> words{};
    DRIVER_OK(cuMemcpyDtoH(words.data(), block, sizeof words));
    check(words[0] == 6 && words[1] == 5, "both fills, in that order: %u, %u", words[0], words[1]);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(block));
}

void registered() {
    alignas(4096) static unsigned char area[8192];
    const auto enter = exported<CUresult (*)(void*, size_t, unsigned)>("cuMemHostRegister");
    DRIVER_OK(enter(area, sizeof area, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr address = 0;
    DRIVER_OK(cuMemHostGetDevicePointer(&address, area, 0));
    DRIVER_OK(cuMemsetD8(address, 9, sizeof area));
    DRIVER_OK(cuCtxSynchronize());
    check(std::count(std::begin(area), std::end(area), 9) == static_cast<long>(sizeof area), "the GPU wrote it");
    check_result(enter(area, sizeof area, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "registered twice");
    DRIVER_OK(cuMemHostUnregister(area));
}

// The parameters of many_parameters, one at a time.
struct Triple {
    short first;
    double second;
    char third;
};
CUresult set_parameters(CUfunction function, CUdeviceptr out, char third) {
    char a = 1;
    short b = 2;
    long long d = 4;
    double f = 6;
    Triple g{7, 8, third};
    DRIVER_OK(cuParamSetv(function, 0, &a, sizeof a));
    DRIVER_OK(cuParamSetv(function, 2, &b, sizeof b));
    DRIVER_OK(cuParamSeti(function, 4, 3));
    DRIVER_OK(cuParamSetv(function, 8, &d, sizeof d));
    DRIVER_OK(cuParamSetf(function, 16, 5));
    DRIVER_OK(cuParamSetv(function, 24, &f, sizeof f));
    DRIVER_OK(cuParamSetv(function, 32, &g, sizeof g));
    DRIVER_OK(cuParamSetv(function, 32 + sizeof g, &out, sizeof out));
    return cuParamSetSize(function, 32 + sizeof g + sizeof out);
}

void launches() {
    const Module module(kernels_ptx().data);
    const CUfunction sum = module.function("many_parameters"), add = module.function("add_value");
    CUdeviceptr block = 0;
    CUstream stream = nullptr;
    DRIVER_OK(cuMemAlloc(&block, 1024));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    double total = 0;
    DRIVER_OK(cuFuncSetBlockShape(sum, 1, 1, 1));
    for (const char third : {9, 10, 11}) {
        DRIVER_OK(set_parameters(sum, block, third));
        DRIVER_OK(third == 9    ? cuLaunch(sum)
                  : third == 10 ? cuLaunchGrid(sum, 1, 1)
                                : cuLaunchGridAsync(sum, 1, 1, stream));
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuMemcpyDtoH(&total, block, sizeof total));
        check(total == 36 + third, "the sum of parameters set one by one: %g", total);
    }

    // add_value(unsigned* data, unsigned count, unsigned value) with 2 blocks of 64 threads
    DRIVER_OK(cuMemsetD8(block, 0, 1024));
    DRIVER_OK(cuFuncSetBlockShape(add, 64, 1, 1));
    DRIVER_OK(cuFuncSetSharedSize(add, 512));
    DRIVER_OK(cuParamSetv(add, 0, &block, sizeof block));
    DRIVER_OK(cuParamSeti(add, 8, 100));
    DRIVER_OK(cuParamSeti(add, 12, 3));
    DRIVER_OK(cuParamSetSize(add, 16));
    DRIVER_OK(cuLaunchGrid(add, 2, 1));
    DRIVER_OK(cuLaunchGridAsync(add, 1, 1, nullptr));
    std::array<unsigned, 128> words{};
    DRIVER_OK(cuMemcpyDtoH(words.data(), block, sizeof words));
    check(std::count(words.begin(), words.begin() + 64, 6u) == 64, "both launches added to the first block's words");
    check(std::count(words.begin() + 64, words.begin() + 100, 3u) == 36, "the first one to the second's");
    check(words[100] == 0, "and none beyond the count");
    check_result(cuFuncSetBlockShape(add, 0, 1, 1), CUDA_ERROR_INVALID_VALUE, "a block without threads");
    check_result(cuLaunchGrid(add, 0, 1), CUDA_ERROR_INVALID_VALUE, "a grid without blocks");
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuMemFree(block));
}

void cooperative() {
    const Module module(kernels_ptx().data);
    CUdeviceptr block = 0;
    CUstream stream = nullptr, other = nullptr;
    DRIVER_OK(cuMemAlloc(&block, 256));
    DRIVER_OK(cuMemsetD8(block, 0, 256));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
    unsigned count = 64, value = 3;
    void* parameters[] = {&block, &count, &value};
    std::array<CUDA_LAUNCH_PARAMS, 2> launches{};
    for (CUDA_LAUNCH_PARAMS& one : launches) {
        one.function = module.function("add_value");
        one.gridDimX = 2;
        one.blockDimX = 32;
        one.gridDimY = one.gridDimZ = one.blockDimY = one.blockDimZ = 1;
        one.hStream = stream;
        one.kernelParams = parameters;
    }
    for (unsigned flags = 0; flags < 4; flags++) {
        DRIVER_OK(cuLaunchCooperativeKernelMultiDevice(launches.data(), 1, flags));
    }
    DRIVER_OK(cuStreamSynchronize(stream));
    std::array<unsigned, 64> words{};
    DRIVER_OK(cuMemcpyDtoH(words.data(), block, sizeof words));
    check(std::count(words.begin(), words.end(), 12u) == 64, "four launches on one device: %u", words[0]);
    launches[1].hStream = other;
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 1, 4), CUDA_ERROR_INVALID_VALUE, "a bad flag");
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 0, 0), CUDA_ERROR_INVALID_VALUE, "no device");
    launches[0].hStream = nullptr;
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 1, 0), CUDA_ERROR_INVALID_HANDLE,
                 "a default stream");
    launches[0].hStream = stream;
    int devices = 0;
    DRIVER_OK(cuDeviceGetCount(&devices));
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 2, 0),
                 devices < 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE, "one device twice");
    launches[0].gridDimX = 1 << 20;
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 1, 0), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                 "more blocks than fit");
    launches[0].gridDimX = 2;
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    check_result(cuLaunchCooperativeKernelMultiDevice(launches.data(), 1, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "while the stream captures");
    (void)cuStreamEndCapture(stream, &graph);
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuStreamDestroy(other));
    DRIVER_OK(cuMemFree(block));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("old_forms", argc, argv);
    DRIVER_OK(cuInit(0));
    CUdevice device = 0;
    DRIVER_OK(cuDeviceGet(&device, 0));
    program.section("contexts", [&] { contexts(device); });
    program.section("attached", [&] { attached(device); });
    program.section("primary", [&] { primary(device); });
    const auto in_context = [&](void (*body)()) {
        return [body] {
            const Device device;
            body();
        };
    };
    program.section("streams_and_events", in_context(streams_and_events));
    program.section("memory_operations", in_context(memory_operations));
    program.section("capture", in_context(capture));
    program.section("graph_nodes", in_context(graph_nodes));
    program.section("registered", in_context(registered));
    program.section("launches", in_context(launches));
    program.section("cooperative", in_context(cooperative));
    return program.finish();
}
