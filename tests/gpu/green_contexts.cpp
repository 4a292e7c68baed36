// Green contexts: splitting a device's multiprocessors, what belongs to a green context and what to the primary one,
// events of whole contexts, and what is left when a green context ends.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"
#include "tests/gpu/latch.h"

using namespace gpupool::programs;

namespace {

// Stores the number of the multiprocessor that each block runs on, after some 0.1 ms.
constexpr const char* kWhere = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 p) {
 .reg .u64 %a<5>; .reg .pred %q; .reg .u32 %v<2>;
 ld.param.u64 %a0, [p]; mov.u64 %a1, %globaltimer;
L: mov.u64 %a2, %globaltimer; sub.u64 %a2, %a2, %a1; setp.lt.u64 %q, %a2, 100000; @%q bra L;
 mov.u32 %v0, %smid; mov.u32 %v1, %ctaid.x; mul.wide.u32 %a3, %v1, 4; add.u64 %a3, %a3, %a0;
 st.global.u32 [%a3], %v0; ret; }
)";

constexpr unsigned kGroup = 16;  // multiprocessors

struct Green {
    explicit Green(const Device& device, unsigned multiprocessors = kGroup) {
        CUdevResource all, rest;
        DRIVER_OK(cuDeviceGetDevResource(device.device(), &all, CU_DEV_RESOURCE_TYPE_SM));
        unsigned groups = 1;
        DRIVER_OK(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, multiprocessors));
        CUdevResourceDesc descriptor = nullptr;
        DRIVER_OK(cuDevResourceGenerateDesc(&descriptor, &part, 1));
        DRIVER_OK(cuGreenCtxCreate(&handle, descriptor, device.device(), CU_GREEN_CTX_DEFAULT_STREAM));
        DRIVER_OK(cuCtxFromGreenCtx(&context, handle));
        DRIVER_OK(cuGreenCtxStreamCreate(&stream, handle, CU_STREAM_NON_BLOCKING, 0));
    }
    void end() { DRIVER_OK(cuGreenCtxDestroy(handle)); }

    CUdevResource part;
    CUgreenCtx handle = nullptr;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
};

struct OwnStream {
    OwnStream() { DRIVER_OK(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
    ~OwnStream() { cuStreamDestroy(handle); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    CUstream handle = nullptr;
};

void split(const Device& device) {
    CUdevResource all, rest;
    DRIVER_OK(cuDeviceGetDevResource(device.device(), &all, CU_DEV_RESOURCE_TYPE_SM));
    const auto total = static_cast<unsigned>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    check(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == total, "the device has %u multiprocessors", total);
    const unsigned least = all.sm.minSmPartitionSize, step = all.sm.smCoscheduledAlignment;
    check(least != 0 && step != 0, "groups of at least %u, in steps of %u", least, step);
    check_result(cuDeviceGetDevResource(device.device(), &all, CU_DEV_RESOURCE_TYPE_INVALID),
                 CUDA_ERROR_INVALID_RESOURCE_TYPE, "a resource of no type");
    check_result(cuDeviceGetDevResource(device.device(), nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE,
                 "no place for the resource");
    check_result(cuDeviceGetDevResource(99, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE, "no device");
    DRIVER_OK(cuDeviceGetDevResource(device.device(), &all, CU_DEV_RESOURCE_TYPE_SM));

    for (const unsigned wanted : {0u, 1u, least, least + 1, 2 * least, total}) {
        unsigned possible = 0, made = 512;
        std::vector<CUdevResource> groups(made);
        DRIVER_OK(cuDevSmResourceSplitByCount(nullptr, &possible, &all, nullptr, 0, wanted));
        DRIVER_OK(cuDevSmResourceSplitByCount(groups.data(), &made, &all, &rest, 0, wanted));
        unsigned sum = rest.type == CU_DEV_RESOURCE_TYPE_SM ? rest.sm.smCount : 0;
        bool fit = made == possible && made != 0;
        for (unsigned i = 0; i < made && i < groups.size(); i++) {
            const unsigned size = groups[i].sm.smCount;
            fit = fit && size >= wanted && size == groups[0].sm.smCount && (size % step == 0 || size == total);
            sum += size;
        }
        check(fit && sum == total, "groups of at least %u: %u of %u", wanted, made, groups[0].sm.smCount);
    }
    std::array<CUdevResource, 2> two;
    unsigned count = 1;
    check_result(cuDevSmResourceSplitByCount(two.data(), &count, &all, nullptr, 0, total + 1),
                 CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "more than there are");
    check_result(cuDevSmResourceSplitByCount(two.data(), &count, &all, nullptr, 3, least), CUDA_ERROR_INVALID_VALUE,
                 "flags that contradict each other");
    check_result(cuDevSmResourceSplitByCount(two.data(), nullptr, &all, nullptr, 0, least), CUDA_ERROR_INVALID_VALUE,
                 "no number of groups");
    count = 0;
    check_result(cuDevSmResourceSplitByCount(two.data(), &count, &all, nullptr, 0, least), CUDA_ERROR_INVALID_VALUE,
                 "no groups");
    count = 2;
    DRIVER_OK(cuDevSmResourceSplitByCount(two.data(), &count, &all, nullptr, 0, least));
    check(count == 2, "two groups");
    CUdevResource part;
    unsigned one = 1;
    check_result(cuDevSmResourceSplitByCount(&part, &one, two.data(), nullptr, 0, least),
                 CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "a group of a group");
    CUdevResourceDesc descriptor = nullptr;
    check_result(cuDevResourceGenerateDesc(&descriptor, two.data(), 2), CUDA_SUCCESS, "a descriptor of two groups");
    check_result(cuDevResourceGenerateDesc(&descriptor, nullptr, 1), CUDA_ERROR_INVALID_VALUE, "of no groups");
    two[0].sm.smCount += step;
    check_result(cuDevResourceGenerateDesc(&descriptor, two.data(), 1), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                 "of a group that the program changed");
    two[1].type = CU_DEV_RESOURCE_TYPE_INVALID;
    check_result(cuDevResourceGenerateDesc(&descriptor, &two[1], 1), CUDA_ERROR_INVALID_RESOURCE_TYPE, "of no type");
    CUgreenCtx green = nullptr;
    check_result(cuGreenCtxCreate(&green, descriptor, device.device(), 0), CUDA_ERROR_INVALID_VALUE, "no flags");
}

void identity(const Device& device) {
    Green green(device);
    CUdevResource told;
    DRIVER_OK(cuGreenCtxGetDevResource(green.handle, &told, CU_DEV_RESOURCE_TYPE_SM));
    check(told.sm.smCount == green.part.sm.smCount, "it has the multiprocessors that it was made with");
    DRIVER_OK(cuCtxGetDevResource(green.context, &told, CU_DEV_RESOURCE_TYPE_SM));
    check(told.sm.smCount == green.part.sm.smCount, "its context has as many");
    DRIVER_OK(cuCtxGetDevResource(device.context(), &told, CU_DEV_RESOURCE_TYPE_SM));
    check(told.sm.smCount > green.part.sm.smCount, "the primary context has more");
    check_result(cuCtxGetDevResource(nullptr, &told, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_CONTEXT,
                 "no context");
    unsigned long long own = 0, of_context = 0, primary = 0;
    DRIVER_OK(cuGreenCtxGetId(green.handle, &own));
    DRIVER_OK(cuCtxGetId(green.context, &of_context));
    DRIVER_OK(cuCtxGetId(device.context(), &primary));
    check(own == of_context && own != primary, "its id is its context's, and not the primary context's");
    CUcontext again = nullptr, current = nullptr;
    DRIVER_OK(cuCtxFromGreenCtx(&again, green.handle));
    DRIVER_OK(cuCtxGetCurrent(&current));
    check(again == green.context && current == device.context(), "its context is one, and not current");
    DRIVER_OK(cuCtxPushCurrent(green.context));
    CUdevice of = -1;
    DRIVER_OK(cuCtxGetDevice(&of));
    check(of == device.device(), "its device");
    check_result(cuCtxDestroy(green.context), CUDA_ERROR_INVALID_CONTEXT, "its context alone cannot be destroyed");
    size_t stack = 0;
    DRIVER_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    DRIVER_OK(cuCtxPopCurrent(&current));
    DRIVER_OK(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    check(current == green.context && stack == 2048, "limits are the primary context's");
    DRIVER_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    check_result(cuDevicePrimaryCtxReset(device.device()), CUDA_ERROR_NOT_PERMITTED,
                 "the primary context cannot be reset meanwhile");
    DRIVER_OK(cuStreamDestroy(green.stream));
    green.end();
}

void streams(const Device& device) {
    Green green(device);
    const OwnStream own;
    CUstream made = nullptr, other = nullptr;
    check_result(cuGreenCtxStreamCreate(&made, green.handle, 0, 0), CUDA_ERROR_INVALID_VALUE, "a blocking stream");
    check_result(cuGreenCtxStreamCreate(nullptr, green.handle, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_INVALID_VALUE,
                 "no place for the stream");
    DRIVER_OK(cuCtxPushCurrent(green.context));
    DRIVER_OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
    const auto expect = [&](const char* what, CUstream stream, bool of_green) {
        CUcontext context = nullptr;
        CUgreenCtx one = nullptr, two = nullptr;
        DRIVER_OK(cuStreamGetCtx_v2(stream, &context, &one));
        DRIVER_OK(cuStreamGetGreenCtx(stream, &two));
        const CUgreenCtx want = of_green ? green.handle : nullptr;
        check(context == device.context() && one == want && two == want, "%s belongs to %s", what,
              of_green ? "the green context" : "the primary context");
    };
    expect("its stream", green.stream, true);
    expect("a stream made in it", made, true);
    expect("a blocking stream made in it", other, true);
    expect("the stream 0", nullptr, true);
    expect("another stream", own.handle, false);
    CUgreenCtx none = nullptr;
    check_result(cuStreamGetGreenCtx(CU_STREAM_PER_THREAD, &none), CUDA_ERROR_INVALID_HANDLE,
                 "it has no per-thread streams");
    check_result(cuStreamGetCtx_v2(made, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE, "neither is asked for");
    CUcontext popped = nullptr;
    DRIVER_OK(cuCtxPopCurrent(&popped));
    expect("the stream 0", nullptr, false);
    for (const CUstream stream : {made, other, green.stream}) {
        DRIVER_OK(cuStreamDestroy(stream));
    }
    green.end();
}

void placement(const Device& device) {
    Green green(device);
    const OwnStream own;
    CUmodule module = nullptr;
    CUfunction where = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, kWhere));
    DRIVER_OK(cuModuleGetFunction(&where, module, "where"));
    const auto total = static_cast<unsigned>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    const unsigned blocks = 4 * total;
    CUdeviceptr numbers = 0;
    DRIVER_OK(cuMemAlloc(&numbers, blocks * sizeof(unsigned)));
    const auto used = [&](CUstream stream) {
        DRIVER_OK(launch(where, blocks, 32, stream, numbers));
        DRIVER_OK(cuStreamSynchronize(stream));
        std::vector<unsigned> all(blocks);
        DRIVER_OK(cuMemcpyDtoH(all.data(), numbers, blocks * sizeof(unsigned)));
        return std::set<unsigned>(all.begin(), all.end()).size();
    };
    const unsigned few = green.part.sm.smCount;
    check(used(green.stream) <= few, "a kernel of its stream uses no more multiprocessors than it has");
    check(used(own.handle) > few, "a kernel of another stream uses more");
    DRIVER_OK(cuCtxPushCurrent(green.context));
    check(used(nullptr) <= few, "a kernel of its default stream does not");
    check(used(own.handle) > few, "the stream decides, not the current context");
    CUcontext popped = nullptr;
    DRIVER_OK(cuCtxPopCurrent(&popped));

    int fit = 0;
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, where, 32, 0));
    const auto cooperate = [&](unsigned count) {
        CUdeviceptr large = 0;
        DRIVER_OK(cuMemAlloc(&large, count * sizeof(unsigned)));
        void* parameters[] = {&large};
        const CUresult result = cuLaunchCooperativeKernel(where, count, 1, 1, 32, 1, 1, 0, green.stream, parameters);
        DRIVER_OK(cuStreamSynchronize(green.stream));
        DRIVER_OK(cuMemFree(large));
        return result;
    };
    check_result(cooperate(few), CUDA_SUCCESS, "a cooperative launch that fits");
    check_result(cooperate(few * static_cast<unsigned>(fit) + 1), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                 "one that fits on the device only");

    DRIVER_OK(cuStreamBeginCapture(green.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(launch(where, blocks, 32, green.stream, numbers));
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuStreamEndCapture(green.stream, &graph));
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, own.handle));
    DRIVER_OK(cuStreamSynchronize(own.handle));
    std::vector<unsigned> all(blocks);
    DRIVER_OK(cuMemcpyDtoH(all.data(), numbers, blocks * sizeof(unsigned)));
    check(std::set<unsigned>(all.begin(), all.end()).size() <= few,
          "so does a kernel captured in it, launched elsewhere");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(numbers));
    DRIVER_OK(cuModuleUnload(module));
    DRIVER_OK(cuStreamDestroy(green.stream));
    green.end();
}

// What is made in a green context belongs to the primary one, and stays when the green context ends.
void objects(const Device& device) {
    Green green(device);
    const OwnStream own;
    DRIVER_OK(cuCtxPushCurrent(green.context));
    CUdeviceptr memory = 0;
    void* host = nullptr;
    CUevent event = nullptr;
    CUmodule module = nullptr;
    CUfunction add = nullptr;
    DRIVER_OK(cuMemAlloc(&memory, 4096));
    DRIVER_OK(cuMemAllocHost(&host, 4096));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    DRIVER_OK(cuModuleLoadData(&module, kernels_ptx().data));
    DRIVER_OK(cuModuleGetFunction(&add, module, "add_value"));
    CUcontext popped = nullptr;
    DRIVER_OK(cuMemsetD32(memory, 5, 16));
    DRIVER_OK(launch(add, 1, 16, nullptr, memory, 16u, 3u));
    DRIVER_OK(cuEventRecord(event, nullptr));
    DRIVER_OK(cuMemcpyDtoHAsync(host, memory, 64, green.stream));
    DRIVER_OK(cuStreamSynchronize(nullptr));
    DRIVER_OK(cuCtxPopCurrent(&popped));
    DRIVER_OK(cuStreamSynchronize(green.stream));
    CUcontext of = nullptr;
    DRIVER_OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    check(of == device.context(), "memory belongs to the primary context");
    DRIVER_OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, reinterpret_cast<CUdeviceptr>(host)));
    check(of == device.context(), "so does host memory");
    green.end();
    check_result(cuEventQuery(event), CUDA_SUCCESS, "the event is there");
    DRIVER_OK(cuEventRecord(event, own.handle));
    DRIVER_OK(launch(add, 1, 16, own.handle, memory, 16u, 4u));
    DRIVER_OK(cuStreamSynchronize(own.handle));
    unsigned value = 0;
    DRIVER_OK(cuMemcpyDtoH(&value, memory, sizeof value));
    check(value == 12, "memory and function are there: %u", value);
    check_result(cuEventDestroy(event), CUDA_SUCCESS, "the event ends");
    check_result(cuMemFree(memory), CUDA_SUCCESS, "the memory ends");
    check_result(cuMemFreeHost(host), CUDA_SUCCESS, "the host memory ends");
    check_result(cuModuleUnload(module), CUDA_SUCCESS, "the module ends");
}

void after_the_end(const Device& device) {
    Green green(device);
    CUcontext current = nullptr;
    DRIVER_OK(cuCtxPushCurrent(green.context));
    green.end();
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    CUdevResource resource;
    unsigned long long id = 0;
    DRIVER_OK(cuCtxGetCurrent(&current));
    check(current == green.context, "it stays current");
    check_result(cuMemAlloc(&memory, 64), CUDA_ERROR_CONTEXT_IS_DESTROYED, "an allocation");
    check_result(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED, "a wait");
    DRIVER_OK(cuCtxPopCurrent(&current));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    check_result(cuStreamQuery(green.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED, "a query of its stream");
    check_result(cuStreamSynchronize(green.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED, "a wait for its stream");
    check_result(cuEventRecord(event, green.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED, "a record in its stream");
    check_result(cuStreamDestroy(green.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED, "the end of its stream");
    check_result(cuGreenCtxRecordEvent(green.handle, event), CUDA_ERROR_CONTEXT_IS_DESTROYED, "a record in it");
    check_result(cuGreenCtxGetDevResource(green.handle, &resource, CU_DEV_RESOURCE_TYPE_SM),
                 CUDA_ERROR_CONTEXT_IS_DESTROYED, "its resources");
    check_result(cuGreenCtxGetId(green.handle, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED, "its id");
    check_result(cuCtxFromGreenCtx(&current, green.handle), CUDA_ERROR_CONTEXT_IS_DESTROYED, "its context");
    check_result(cuGreenCtxDestroy(green.handle), CUDA_ERROR_CONTEXT_IS_DESTROYED, "another end");
    DRIVER_OK(cuMemAlloc(&memory, 64));
    DRIVER_OK(cuMemFree(memory));
    DRIVER_OK(cuEventDestroy(event));
}

// A green context may end while its work runs. The work goes on, and a wait for the primary context covers it.
void ended_while_busy(const Device& device) {
    Green green(device);
    const OwnStream own;
    constexpr size_t kBytes = 1 << 16;
    CUevent event = nullptr;
    CUdeviceptr memory = 0, freed = 0, again = 0;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    DRIVER_OK(cuMemAlloc(&memory, kBytes));
    DRIVER_OK(cuMemsetD8(memory, 0, kBytes));
    DRIVER_OK(cuCtxPushCurrent(green.context));
    DRIVER_OK(cuMemAllocAsync(&freed, kBytes, green.stream));
    Latch latch;
    DRIVER_OK(cuLaunchHostFunc(green.stream, Latch::wait, &latch));
    DRIVER_OK(cuMemsetD8Async(memory, 1, kBytes, green.stream));
    DRIVER_OK(cuMemsetD8Async(freed, 1, kBytes, green.stream));
    DRIVER_OK(cuEventRecord(event, green.stream));
    DRIVER_OK(cuMemFreeAsync(freed, green.stream));
    CUcontext popped = nullptr;
    DRIVER_OK(cuCtxPopCurrent(&popped));
    green.end();
    check(!latch.over(), "it ends without a wait");
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "its work goes on");
    check_result(cuStreamQuery(green.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED, "its stream cannot be used");
    // Memory that it has freed is not yet free for others.
    DRIVER_OK(cuMemAllocAsync(&again, kBytes, own.handle));
    DRIVER_OK(cuMemsetD8Async(again, 2, kBytes, own.handle));
    DRIVER_OK(cuStreamSynchronize(own.handle));
    std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        latch.open();
    });
    DRIVER_OK(cuCtxSynchronize());
    check(latch.over() && !latch.late(), "a wait for the primary context waits for it");
    opens.join();
    check_result(cuEventQuery(event), CUDA_SUCCESS, "its event is complete");
    std::vector<unsigned char> written(kBytes), other(kBytes);
    DRIVER_OK(cuMemcpyDtoH(written.data(), memory, kBytes));
    DRIVER_OK(cuMemcpyDtoH(other.data(), again, kBytes));
    check(std::count(written.begin(), written.end(), 1) == static_cast<long>(kBytes), "its last work was done");
    check(std::count(other.begin(), other.end(), 2) == static_cast<long>(kBytes), "other memory is as it was");
    DRIVER_OK(cuMemFree(again));
    DRIVER_OK(cuMemFree(memory));
    DRIVER_OK(cuEventDestroy(event));
}

// Which work a wait for a context, or an event recorded in one, covers.
void events(const Device& device) {
    Green green(device);
    const OwnStream own;
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    const auto covers = [&](const char* what, CUstream busy, bool want, auto record) {
        Latch latch;
        DRIVER_OK(cuLaunchHostFunc(busy, Latch::wait, &latch));
        DRIVER_OK(record());
        // An event that does not cover the work is soon complete.
        CUresult result = cuEventQuery(event);
        for (int i = 0; i < 200 && !want && result == CUDA_ERROR_NOT_READY; i++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            result = cuEventQuery(event);
        }
        check_result(result, want ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS, what);
        latch.open();
        DRIVER_OK(cuEventSynchronize(event));
        DRIVER_OK(cuStreamSynchronize(busy));
    };
    const auto green_record = [&] { return cuGreenCtxRecordEvent(green.handle, event); };
    const auto context_record = [&] { return cuCtxRecordEvent(device.context(), event); };
    covers("an event of the green context, work of its stream", green.stream, true, green_record);
    covers("an event of the green context, other work", own.handle, false, green_record);
    covers("an event of the primary context, work of its stream", own.handle, true, context_record);
    covers("an event of the primary context, work of the green one", green.stream, true, context_record);

    const auto holds_back = [&](const char* what, CUstream busy, CUstream later, auto wait) {
        Latch latch;
        DRIVER_OK(cuLaunchHostFunc(busy, Latch::wait, &latch));
        DRIVER_OK(cuEventRecord(event, busy));
        DRIVER_OK(wait());
        CUdeviceptr memory = 0;
        DRIVER_OK(cuMemAlloc(&memory, 64));
        DRIVER_OK(cuMemsetD8Async(memory, 1, 64, later));
        check_result(cuStreamQuery(later), CUDA_ERROR_NOT_READY, what);
        latch.open();
        DRIVER_OK(cuStreamSynchronize(later));
        check(latch.over(), "%s: after that", what);
        DRIVER_OK(cuStreamSynchronize(busy));
        DRIVER_OK(cuMemFree(memory));
    };
    holds_back("work of the green context waits", own.handle, green.stream,
               [&] { return cuGreenCtxWaitEvent(green.handle, event); });
    holds_back("work of the primary context waits", green.stream, own.handle,
               [&] { return cuCtxWaitEvent(device.context(), event); });

    CUcontext other = nullptr;
    DRIVER_OK(cuCtxCreate(&other, nullptr, 0, device.device()));
    CUevent foreign = nullptr;
    DRIVER_OK(cuEventCreate(&foreign, CU_EVENT_DEFAULT));
    device.use();
    check_result(cuCtxRecordEvent(device.context(), foreign), CUDA_ERROR_INVALID_HANDLE, "another context's event");
    check_result(cuGreenCtxRecordEvent(green.handle, foreign), CUDA_ERROR_INVALID_HANDLE, "the same, green");
    check_result(cuCtxRecordEvent(nullptr, event), CUDA_ERROR_INVALID_CONTEXT, "no context");
    check_result(cuCtxWaitEvent(nullptr, event), CUDA_ERROR_INVALID_CONTEXT, "no context that waits");
    DRIVER_OK(cuCtxDestroy(other));
    device.use();

    const auto in_capture = [&](const char* what, CUstream stream, CUresult want, auto call) {
        DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        check_result(call(), want, what);
        CUgraph graph = nullptr;
        check_result(cuStreamEndCapture(stream, &graph),
                     want == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, what);
        if (graph != nullptr) {
            DRIVER_OK(cuGraphDestroy(graph));
        }
    };
    in_capture("its stream captures, a record", green.stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, green_record);
    in_capture("its stream captures, a wait", green.stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               [&] { return cuGreenCtxWaitEvent(green.handle, event); });
    in_capture("another stream captures, a record", own.handle, CUDA_SUCCESS, green_record);
    in_capture("a stream of the context captures, a record", own.handle, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               context_record);
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(green.stream));
    green.end();
}

void waits(const Device& device) {
    Green green(device);
    const OwnStream own;
    Latch latch;
    DRIVER_OK(cuLaunchHostFunc(own.handle, Latch::wait, &latch));
    DRIVER_OK(cuCtxPushCurrent(green.context));
    DRIVER_OK(cuCtxSynchronize());
    check(!latch.over(), "a wait for the green context does not wait for other streams");
    CUcontext popped = nullptr;
    DRIVER_OK(cuCtxPopCurrent(&popped));
    latch.open();
    DRIVER_OK(cuStreamSynchronize(own.handle));
    Latch second;
    DRIVER_OK(cuLaunchHostFunc(green.stream, Latch::wait, &second));
    std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        second.open();
    });
    DRIVER_OK(cuCtxSynchronize());
    check(second.over(), "a wait for the primary context waits for the green one");
    opens.join();
    DRIVER_OK(cuStreamDestroy(green.stream));
    green.end();
}

void many(const Device& device) {
    std::vector<Green> all;
    for (int i = 0; i < 100; i++) {
        all.emplace_back(device);
    }
    for (Green& green : all) {
        DRIVER_OK(cuStreamDestroy(green.stream));
        green.end();
    }
    check(all.size() == 100, "a hundred green contexts at once");
}

}  // namespace

int main(int argc, char** argv) {
    Program program("green_contexts", argc, argv);
    const Device device;
    const auto multiprocessors = static_cast<unsigned>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    const auto section = [&](const char* name, auto body) {
        program.section(name, [&] {
            if (multiprocessors < 2 * kGroup) {
                note("the device has too few multiprocessors to split: %u", multiprocessors);
                return;
            }
            body(device);
        });
    };
    section("split", split);
    section("identity", identity);
    section("streams", streams);
    section("placement", placement);
    section("objects", objects);
    section("after_the_end", after_the_end);
    section("ended_while_busy", ended_while_busy);
    section("events", events);
    section("waits", waits);
    section("many", many);
    return program.finish();
}
