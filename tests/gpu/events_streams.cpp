// Streams and events: properties, order between streams, the legacy stream's rules, elapsed time, memory waits and
// writes, host functions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <semaphore>
#include <set>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

// Device words: a flag to wait for, the waiting kernel's result, a log of tickets and its length.
struct Words {
    CUdeviceptr base = 0;
    Words() { DRIVER_OK(cuMemAlloc(&base, 256)); }
    ~Words() { cuMemFree(base); }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    CUdeviceptr flag() const { return base; }
    CUdeviceptr outcome() const { return base + 4; }
    CUdeviceptr next() const { return base + 8; }
    CUdeviceptr log() const { return base + 64; }
    // Kernels that released others may still be running; they have written their words, but were not waited for.
    void clear() const {
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuMemsetD8(base, 0, 256));
        DRIVER_OK(cuCtxSynchronize());
    }
    unsigned read(CUdeviceptr address) const {
        unsigned value = 0;
        DRIVER_OK(cuMemcpyDtoH(&value, address, sizeof value));
        return value;
    }
};

struct Kernels {
    Module module{kernels_ptx().data};
    CUfunction spin = module.function("spin");
    CUfunction append = module.function("append_ticket");
    CUfunction store = module.function("store_word");

    // Loads every kernel, so that no first launch waits while another kernel runs.
    explicit Kernels(const Words& words) {
        DRIVER_OK(cuMemsetD32(words.base, 1, 64));
        DRIVER_OK(wait(nullptr, words));
        DRIVER_OK(ticket(nullptr, words, 0));
        DRIVER_OK(release(nullptr, words));
        DRIVER_OK(cuCtxSynchronize());
    }
    CUresult wait(CUstream stream, const Words& words) const {
        return launch(spin, 1, 1, stream, words.flag(), words.outcome(), kSpinLimit);
    }
    CUresult ticket(CUstream stream, const Words& words, unsigned number) const {
        return launch(append, 1, 1, stream, words.log(), 16u, words.next(), number);
    }
    CUresult release(CUstream stream, const Words& words) const {
        return launch(store, 1, 1, stream, words.flag(), 1u);
    }
};

void properties(const Device& device) {
    int least = 0, greatest = 0;
    DRIVER_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CUstream plain = nullptr, urgent = nullptr;
    DRIVER_OK(cuStreamCreate(&plain, CU_STREAM_DEFAULT));
    DRIVER_OK(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, greatest - 100));
    unsigned flags = 99;
    int priority = 99;
    DRIVER_OK(cuStreamGetFlags(plain, &flags));
    check(flags == CU_STREAM_DEFAULT, "flags of a plain stream (%u)", flags);
    DRIVER_OK(cuStreamGetFlags(urgent, &flags));
    check(flags == CU_STREAM_NON_BLOCKING, "flags of a non-blocking stream (%u)", flags);
    DRIVER_OK(cuStreamGetPriority(plain, &priority));
    check(priority == 0, "priority of a plain stream (%d)", priority);
    DRIVER_OK(cuStreamGetPriority(urgent, &priority));
    check(priority == greatest, "a priority beyond the range is the nearest one (%d of %d)", priority, greatest);
    CUcontext context = nullptr;
    DRIVER_OK(cuStreamGetCtx(plain, &context));
    check(context == device.context(), "a stream's context");
    CUdevice owner = -1;
    DRIVER_OK(cuStreamGetDevice(plain, &owner));
    check(owner == device.device(), "a stream's device");
    std::set<unsigned long long> ids;
    for (const CUstream stream : {plain, urgent, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
        unsigned long long id = 0;
        DRIVER_OK(cuStreamGetId(stream, &id));
        ids.insert(id);
    }
    check(ids.size() == 4, "ids of four streams differ");
    unsigned long long null_id = 0, legacy_id = 1;
    DRIVER_OK(cuStreamGetId(nullptr, &null_id));
    DRIVER_OK(cuStreamGetId(CU_STREAM_LEGACY, &legacy_id));
    check(null_id == legacy_id, "the null stream is the legacy stream");
    CUstreamCaptureStatus status{};
    DRIVER_OK(cuStreamIsCapturing(plain, &status));
    check(status == CU_STREAM_CAPTURE_STATUS_NONE, "a stream that does not capture");
    DRIVER_OK(cuStreamDestroy(plain));
    DRIVER_OK(cuStreamDestroy(urgent));
}

void order_by_events(const Words& words, const Kernels& kernels) {
    words.clear();
    CUstream first = nullptr, second = nullptr, releasing = nullptr;
    CUevent before = nullptr, after = nullptr, unordered = nullptr;
    for (CUstream* stream : {&first, &second, &releasing}) {
        DRIVER_OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    }
    DRIVER_OK(cuEventCreate(&before, CU_EVENT_DEFAULT));
    DRIVER_OK(cuEventCreate(&after, CU_EVENT_BLOCKING_SYNC));
    DRIVER_OK(cuEventCreate(&unordered, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuEventRecord(before, first));
    DRIVER_OK(kernels.wait(first, words));
    DRIVER_OK(kernels.ticket(first, words, 1));
    DRIVER_OK(cuEventRecordWithFlags(after, first, CU_EVENT_RECORD_DEFAULT));
    DRIVER_OK(cuStreamWaitEvent(second, unordered, 0));  // never recorded: nothing to wait for
    DRIVER_OK(cuStreamWaitEvent(second, after, 0));
    DRIVER_OK(kernels.ticket(second, words, 2));
    check_result(cuEventQuery(after), CUDA_ERROR_NOT_READY, "an event behind a waiting kernel");
    check_result(cuStreamQuery(first), CUDA_ERROR_NOT_READY, "its stream");
    check_result(cuStreamQuery(second), CUDA_ERROR_NOT_READY, "a stream that waits for the event");
    float milliseconds = -1;
    check_result(cuEventElapsedTime(&milliseconds, before, after), CUDA_ERROR_NOT_READY, "elapsed time before the end");
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuEventSynchronize(after));
    DRIVER_OK(cuStreamSynchronize(second));
    check(words.read(words.outcome()) == 1, "the waiting kernel was released by another stream");
    check(words.read(words.log()) == 1 && words.read(words.log() + 4) == 2, "the order across streams held");
    DRIVER_OK(cuEventElapsedTime(&milliseconds, before, after));
    check(milliseconds > 0, "elapsed time: %.3f ms", static_cast<double>(milliseconds));
    float backwards = 1;
    DRIVER_OK(cuEventElapsedTime(&backwards, after, before));
    check(backwards < 0, "and backwards: %.3f ms", static_cast<double>(backwards));
    for (const CUevent event : {before, after, unordered}) {
        DRIVER_OK(cuEventDestroy(event));
    }
    for (const CUstream stream : {first, second, releasing}) {
        DRIVER_OK(cuStreamDestroy(stream));
    }
}

// An event that is queried repeatedly and recorded again in between. "Complete" means that data copied back before it
// has arrived, both in its own stream and in another one that this waited for.
void query_again(const Words& words, const Kernels& kernels) {
    constexpr unsigned kRounds = 200;
    words.clear();
    CUstream stream = nullptr, other = nullptr, releasing = nullptr;
    CUevent event = nullptr, copied = nullptr;
    for (CUstream* each : {&stream, &other, &releasing}) {
        DRIVER_OK(cuStreamCreate(each, CU_STREAM_NON_BLOCKING));
    }
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    check_result(cuEventQuery(event), CUDA_SUCCESS, "an event that was never recorded");
    unsigned* seen = nullptr;
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&seen), 2 * sizeof(unsigned)));
    unsigned wrong = 0;
    for (unsigned round = 1; round <= kRounds; round++) {
        DRIVER_OK(cuMemsetD32Async(words.log(), round, 1, stream));
        DRIVER_OK(cuMemsetD32Async(words.log() + 4, round, 1, other));
        DRIVER_OK(cuMemcpyDtoHAsync(&seen[1], words.log() + 4, sizeof(unsigned), other));
        DRIVER_OK(cuEventRecord(copied, other));
        DRIVER_OK(cuStreamWaitEvent(stream, copied, 0));
        DRIVER_OK(cuMemcpyDtoHAsync(&seen[0], words.log(), sizeof(unsigned), stream));
        DRIVER_OK(cuEventRecord(event, stream));
        CUresult result = CUDA_ERROR_NOT_READY;
        while (result == CUDA_ERROR_NOT_READY) {
            result = cuEventQuery(event);
        }
        DRIVER_OK(result);
        wrong += seen[0] == round && seen[1] == round ? 0 : 1;
    }
    check(wrong == 0, "%u of %u times an event was complete before its data", wrong, kRounds);
    check_result(cuEventQuery(event), CUDA_SUCCESS, "still complete");

    DRIVER_OK(kernels.wait(stream, words));
    DRIVER_OK(cuEventRecord(event, stream));
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "recorded again, behind a waiting kernel");
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "and asked again");
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuEventSynchronize(event));
    check_result(cuEventQuery(event), CUDA_SUCCESS, "after the wait for it");

    words.clear();
    DRIVER_OK(kernels.wait(stream, words));
    for (unsigned i = 0; i < 700; i++) {  // more than the worker issues at once, fewer than the driver queues
        DRIVER_OK(launch(kernels.store, 1, 1, stream, words.base + 128, i));
    }
    DRIVER_OK(cuEventRecord(event, stream));
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "recorded behind many that wait");
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "and asked again");
    DRIVER_OK(kernels.release(releasing, words));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    CUresult seen_last = CUDA_ERROR_NOT_READY;
    while (seen_last == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < until) {
        seen_last = cuEventQuery(event);
    }
    check_result(seen_last, CUDA_SUCCESS, "a query reports its end");
    unsigned late = 0;
    for (unsigned round = 0; round < kRounds; round++) {
        DRIVER_OK(cuMemsetD32Async(words.log(), round, 1, stream));
        DRIVER_OK(cuEventRecord(event, stream));
        (void)cuEventQuery(event);
        DRIVER_OK(cuStreamSynchronize(stream));
        late += cuEventQuery(event) == CUDA_SUCCESS ? 0 : 1;
    }
    check(late == 0, "%u of %u times an event was not complete although its stream was", late, kRounds);
    DRIVER_OK(cuMemFreeHost(seen));
    for (const CUevent each : {event, copied}) {
        DRIVER_OK(cuEventDestroy(each));
    }
    for (const CUstream each : {stream, other, releasing}) {
        DRIVER_OK(cuStreamDestroy(each));
    }
}

// A wait for an event refers to its last record at the time of the call. Behind a large copy from the host that record
// may not be issued yet when another stream records the event again.
void recorded_again(const Words& words, const Kernels& kernels) {
    constexpr size_t kBytes = 8u << 20;
    CUstream copying = nullptr, working = nullptr, behind = nullptr, releasing = nullptr;
    for (CUstream* each : {&copying, &working, &behind, &releasing}) {
        DRIVER_OK(cuStreamCreate(each, CU_STREAM_NON_BLOCKING));
    }
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    void* pinned = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAllocHost(&pinned, kBytes));
    DRIVER_OK(cuMemAlloc(&block, kBytes));
    const auto copy = [&] { return cuMemcpyHtoDAsync(block, pinned, kBytes, copying); };

    words.clear();
    DRIVER_OK(copy());
    DRIVER_OK(cuEventRecord(event, copying));
    DRIVER_OK(kernels.wait(working, words));
    DRIVER_OK(kernels.ticket(working, words, 1));
    DRIVER_OK(cuEventRecord(event, working));
    DRIVER_OK(cuStreamWaitEvent(behind, event, 0));
    DRIVER_OK(kernels.ticket(behind, words, 2));
    DRIVER_OK(cuStreamSynchronize(copying));
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "recorded behind a copy, then behind a waiting kernel");
    check_result(cuStreamQuery(behind), CUDA_ERROR_NOT_READY, "a stream that waits for it waits for the kernel");
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuEventSynchronize(event));
    DRIVER_OK(cuStreamSynchronize(behind));
    check(words.read(words.log()) == 1 && words.read(words.log() + 4) == 2, "in that order");

    // The other way round: the wait refers to the earlier record, which is complete.
    words.clear();
    DRIVER_OK(cuEventRecord(event, working));
    DRIVER_OK(copy());
    DRIVER_OK(cuStreamWaitEvent(copying, event, 0));
    DRIVER_OK(kernels.ticket(copying, words, 1));
    DRIVER_OK(kernels.wait(working, words));
    DRIVER_OK(cuEventRecord(event, working));
    DRIVER_OK(cuStreamSynchronize(copying));
    check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "a stream that waited for the earlier record continued");
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuEventSynchronize(event));
    check(words.read(words.outcome()) == 1, "and the kernel was released and did not reach its limit");

    // Repeatedly in two streams, and destroyed while its records are not issued yet.
    words.clear();
    DRIVER_OK(kernels.wait(working, words));
    for (unsigned round = 0; round < 50; round++) {
        DRIVER_OK(copy());
        DRIVER_OK(cuEventRecord(event, copying));
        DRIVER_OK(cuEventRecord(event, working));
        DRIVER_OK(cuStreamWaitEvent(behind, event, 0));
    }
    DRIVER_OK(cuEventDestroy(event));
    check_result(cuStreamQuery(behind), CUDA_ERROR_NOT_READY, "a wait for the last record");
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuStreamSynchronize(behind));
    DRIVER_OK(cuStreamSynchronize(copying));
    check(words.read(words.outcome()) == 1, "waited for the kernel alone");
    DRIVER_OK(cuMemFreeHost(pinned));
    DRIVER_OK(cuMemFree(block));
    for (const CUstream each : {copying, working, behind, releasing}) {
        DRIVER_OK(cuStreamDestroy(each));
    }
}

// The legacy stream waits for blocking streams and they for it; non-blocking streams are not affected.
void legacy_rules(const Words& words, const Kernels& kernels) {
    words.clear();
    CUstream blocking = nullptr, other = nullptr, independent = nullptr;
    DRIVER_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
    DRIVER_OK(cuStreamCreate(&independent, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(kernels.wait(blocking, words));
    DRIVER_OK(kernels.ticket(blocking, words, 1));
    DRIVER_OK(kernels.ticket(nullptr, words, 2));
    DRIVER_OK(kernels.ticket(other, words, 3));
    check_result(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY, "the legacy stream waits for a blocking stream");
    check_result(cuStreamQuery(other), CUDA_ERROR_NOT_READY, "another blocking stream waits for the legacy stream");
    DRIVER_OK(cuMemsetD32Async(words.log() + 40, 9, 1, independent));
    DRIVER_OK(cuStreamSynchronize(independent));
    check(cuStreamQuery(blocking) == CUDA_ERROR_NOT_READY, "a non-blocking stream went on meanwhile");
    DRIVER_OK(kernels.release(independent, words));
    DRIVER_OK(cuStreamSynchronize(other));
    check(words.read(words.log()) == 1 && words.read(words.log() + 4) == 2 && words.read(words.log() + 8) == 3,
          "blocking, legacy, blocking: in that order");
    DRIVER_OK(cuStreamDestroy(blocking));
    DRIVER_OK(cuStreamDestroy(other));
    DRIVER_OK(cuStreamDestroy(independent));
}

// Polling a blocking stream does not wait for later work of the legacy stream.
void polled_beside_legacy(const Words& words, const Kernels& kernels) {
    words.clear();
    const CUdeviceptr own_flag = words.log() + 100, own_outcome = words.log() + 104;
    CUstream blocking = nullptr, releasing = nullptr;
    DRIVER_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DRIVER_OK(cuStreamCreate(&releasing, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(launch(kernels.spin, 1, 1, blocking, own_flag, own_outcome, kSpinLimit));
    check_result(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY, "the legacy stream, beside a busy blocking stream");
    DRIVER_OK(kernels.wait(nullptr, words));
    check_result(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY, "a kernel waits");
    std::binary_semaphore waited{0};
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    std::thread waiting([&] {
        DRIVER_OK(cuCtxSetCurrent(context));
        DRIVER_OK(cuStreamSynchronize(blocking));
        waited.release();
    });
    DRIVER_OK(launch(kernels.store, 1, 1, releasing, own_flag, 1u));
    CUresult ready = CUDA_ERROR_NOT_READY;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (ready == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < end) {
        ready = cuStreamQuery(blocking);
    }
    check_result(ready, CUDA_SUCCESS, "it was released, and its stream is ready");
    check(waited.try_acquire_for(std::chrono::seconds(5)), "a wait for that stream waited for nothing else");
    check_result(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY, "the legacy stream is not");
    DRIVER_OK(kernels.release(releasing, words));
    waiting.join();
    DRIVER_OK(cuCtxSynchronize());
    check(words.read(words.outcome()) == 1, "its kernel was released and did not reach its limit");
    DRIVER_OK(cuStreamDestroy(blocking));
    DRIVER_OK(cuStreamDestroy(releasing));
}

// The same where kernels may print, so that a wait also writes their output.
void polled_beside_legacy_and_prints(const Words& words, const Kernels& kernels) {
    static constexpr char kPrints[] = R"(
.version 7.0
.target sm_50
.address_size 64
.extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[9] = {112, 114, 105, 110, 116, 101, 100, 10, 0};
.visible .entry prints()
{
    .reg .b64 %address;
    .reg .b32 %result;
    mov.u64 %address, text;
    cvta.global.u64 %address, %address;
    {
        .param .b64 format;
        .param .b64 arguments;
        .param .b32 status;
        st.param.b64 [format], %address;
        st.param.b64 [arguments], 0;
        call.uni (status), vprintf, (format, arguments);
        ld.param.b32 %result, [status];
    }
    ret;
}
)";
    CUmodule module = nullptr;
    CUfunction prints = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, kPrints));
    DRIVER_OK(cuModuleGetFunction(&prints, module, "prints"));
    DRIVER_OK(cuLaunchKernel(prints, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    DRIVER_OK(cuCtxSynchronize());
    polled_beside_legacy(words, kernels);
    DRIVER_OK(cuModuleUnload(module));
}

// Every way to learn that work is complete also shows that its stream is complete, even if a query found the stream
// busy before.
void found_busy_and_waited_for(const Words& words, const Kernels& kernels) {
    CUstream working = nullptr, releasing = nullptr, behind = nullptr;
    CUevent event = nullptr;
    for (CUstream* stream : {&working, &releasing, &behind}) {
        DRIVER_OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    }
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    int busy = 0;
    for (int round = 0; round < 60; round++) {
        words.clear();
        DRIVER_OK(kernels.wait(working, words));
        DRIVER_OK(cuEventRecord(event, working));
        DRIVER_OK(cuStreamWaitEvent(behind, event, 0));
        check_result(cuStreamQuery(working), CUDA_ERROR_NOT_READY, "a kernel waits");
        check_result(cuStreamQuery(behind), CUDA_ERROR_NOT_READY, "and another stream for it");
        DRIVER_OK(kernels.release(releasing, words));
        switch (round % 3) {
            case 0: DRIVER_OK(cuEventSynchronize(event)); break;
            case 1: DRIVER_OK(cuStreamSynchronize(behind)); break;
            default:
                while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
                }
        }
        busy += cuStreamQuery(working) == CUDA_SUCCESS ? 0 : 1;
        DRIVER_OK(cuCtxSynchronize());
    }
    check(busy == 0, "once it is known to be complete its stream is ready (%d times it was not)", busy);
    DRIVER_OK(cuEventDestroy(event));
    for (const CUstream each : {working, releasing, behind}) {
        DRIVER_OK(cuStreamDestroy(each));
    }
}

// A destroyed stream still runs its work; a destroyed event still blocks its waiters.
void destroyed_while_busy(const Words& words, const Kernels& kernels) {
    words.clear();
    CUstream busy = nullptr, behind = nullptr, releasing = nullptr;
    for (CUstream* stream : {&busy, &behind, &releasing}) {
        DRIVER_OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    }
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(kernels.wait(busy, words));
    DRIVER_OK(kernels.ticket(busy, words, 1));
    DRIVER_OK(cuEventRecord(event, busy));
    DRIVER_OK(cuStreamWaitEvent(behind, event, 0));
    DRIVER_OK(kernels.ticket(behind, words, 2));
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(busy));
    DRIVER_OK(kernels.release(releasing, words));
    DRIVER_OK(cuStreamSynchronize(behind));
    check(words.read(words.log()) == 1 && words.read(words.log() + 4) == 2, "work of a destroyed stream and event");
    DRIVER_OK(cuStreamDestroy(behind));
    DRIVER_OK(cuStreamDestroy(releasing));
}

template <class Function>
Function form_of_8_0(const char* name) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    DRIVER_OK(cuGetProcAddress(name, &address, 9000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    return reinterpret_cast<Function>(address);
}

// The forms that programs from before CUDA 11.7 call. A device attribute tells whether they work.
void first_forms(const Device& device, const Words& words, CUstream stream, CUstreamBatchMemOpParams* batch) {
    const bool there = device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1) != 0;
    const CUresult want = there ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    batch[0].writeValue.value = batch[1].waitValue.value = 12;
    const auto all = form_of_8_0<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
    const auto write = form_of_8_0<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
    const auto wait = form_of_8_0<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
    check_result(all(stream, 2, batch, 0), want, "a batch of operations in its first form");
    check_result(all(stream, 257, batch, 0), CUDA_ERROR_INVALID_VALUE, "more operations than a batch may have");
    check_result(write(stream, words.log() + 36, 13, 0), want, "a write in its first form");
    check_result(wait(stream, words.log() + 36, 0, CU_STREAM_WAIT_VALUE_GEQ), want, "a wait in its first form");
    DRIVER_OK(cuStreamSynchronize(stream));
    check(words.read(words.log() + 32) == (there ? 12u : 11u), "what the first forms wrote");
}

void memory_operations(const Device& device, const Words& words, const Kernels& kernels) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
        note("this device has no stream memory operations");
        return;
    }
    words.clear();
    CUstream waiting = nullptr, writing = nullptr;
    DRIVER_OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamWaitValue32(waiting, words.flag(), 5, CU_STREAM_WAIT_VALUE_GEQ));
    DRIVER_OK(kernels.ticket(waiting, words, 1));
    check_result(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY, "a stream that waits for a value");
    DRIVER_OK(cuStreamWriteValue32(writing, words.flag(), 5, CU_STREAM_WRITE_VALUE_DEFAULT));
    DRIVER_OK(cuStreamSynchronize(waiting));
    check(words.read(words.log()) == 1, "went on once another stream had written it");
    DRIVER_OK(cuStreamWriteValue64(writing, words.log() + 16, 0x1122334455667788u, CU_STREAM_WRITE_VALUE_DEFAULT));
    CUstreamBatchMemOpParams batch[2] = {};
    batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[0].writeValue.address = words.log() + 32;
    batch[0].writeValue.value = 11;
    batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    batch[1].waitValue.address = words.log() + 32;
    batch[1].waitValue.value = 11;
    batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    DRIVER_OK(cuStreamBatchMemOp(writing, 2, batch, 0));
    DRIVER_OK(cuStreamSynchronize(writing));
    check(words.read(words.log() + 16) == 0x55667788u && words.read(words.log() + 20) == 0x11223344u,
          "64 bits written");
    check(words.read(words.log() + 32) == 11, "a batch of operations");
    first_forms(device, words, writing, batch);
    DRIVER_OK(cuStreamDestroy(waiting));
    DRIVER_OK(cuStreamDestroy(writing));
}

struct HostLog {
    std::atomic<int> inside{0};
    std::atomic<int> most_inside{0};
    std::atomic<int> count{0};
    std::atomic<int> inner_result{-1};
    int order[64] = {};
};

struct HostEntry {
    HostLog* log;
    int id;
};

void CUDA_CB host_function(void* data) {
    const auto* entry = static_cast<HostEntry*>(data);
    HostLog& log = *entry->log;
    const int inside = log.inside.fetch_add(1) + 1;
    log.most_inside = std::max(log.most_inside.load(), inside);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that functions that overlap are seen to
    const int slot = log.count.fetch_add(1);
    if (slot < 64) {
        log.order[slot] = entry->id;
    }
    log.inside.fetch_sub(1);
}

// Calls that a host function may not make, and the older way to enqueue one.
void inner_calls(CUstream first, CUstream second, HostLog& log) {
    DRIVER_OK(cuLaunchHostFunc(
        first,
        [](void* data) {
            CUdeviceptr none = 0;
            static_cast<HostLog*>(data)->inner_result = cuMemAlloc(&none, 1024);
        },
        &log));
    DRIVER_OK(cuStreamSynchronize(first));
    check_result(static_cast<CUresult>(log.inner_result.load()), CUDA_ERROR_NOT_PERMITTED,
                 "a CUDA call in a host function");

    std::atomic<int> callback_result{-1};
    DRIVER_OK(cuStreamAddCallback(
        second, [](CUstream, CUresult status, void* data) { static_cast<std::atomic<int>*>(data)->store(status); },
        &callback_result, 0));
    DRIVER_OK(cuStreamSynchronize(second));
    check(callback_result.load() == CUDA_SUCCESS, "a callback with its status (%d)", callback_result.load());
}

void host_functions(const Words& words, const Kernels& kernels) {
    words.clear();
    constexpr int kPerStream = 8;
    HostLog log;
    std::vector<HostEntry> entries;
    CUstream streams[2] = {};
    for (int i = 0; i < 2 * kPerStream; i++) {
        entries.push_back({&log, i});
    }
    DRIVER_OK(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    DRIVER_OK(kernels.wait(streams[0], words));
    for (int i = 0; i < kPerStream; i++) {
        for (int s = 0; s < 2; s++) {
            DRIVER_OK(cuLaunchHostFunc(streams[s], host_function, &entries[s * kPerStream + i]));
        }
    }
    DRIVER_OK(cuStreamSynchronize(streams[1]));
    check(log.count.load() == kPerStream, "host functions of one stream ran while the other waits (%d)",
          log.count.load());
    DRIVER_OK(kernels.release(streams[1], words));
    DRIVER_OK(cuStreamSynchronize(streams[0]));
    check(log.count.load() == 2 * kPerStream, "all %d host functions ran", log.count.load());
    bool in_order = true;
    for (int i = 0; i < 2 * kPerStream; i++) {
        in_order = in_order && log.order[i] == (i + kPerStream) % (2 * kPerStream);
    }
    check(in_order, "each stream's in its order");

    // Both streams are ready now, but no two host functions may run at the same time.
    log.count.store(0);
    for (int i = 0; i < kPerStream; i++) {
        for (int s = 0; s < 2; s++) {
            DRIVER_OK(cuLaunchHostFunc(streams[s], host_function, &entries[s * kPerStream + i]));
        }
    }
    DRIVER_OK(cuStreamSynchronize(streams[0]));
    DRIVER_OK(cuStreamSynchronize(streams[1]));
    check(log.count.load() == 2 * kPerStream && log.most_inside.load() == 1,
          "host functions of two streams, never two at the same time (%d)", log.most_inside.load());
    inner_calls(streams[0], streams[1], log);
    DRIVER_OK(cuStreamDestroy(streams[0]));
    DRIVER_OK(cuStreamDestroy(streams[1]));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("events_streams", argc, argv);
    const Device device;
    const Words words;
    const Kernels kernels(words);
    program.section("properties", [&] { properties(device); });
    program.section("order_by_events", [&] { order_by_events(words, kernels); });
    program.section("query_again", [&] { query_again(words, kernels); });
    program.section("recorded_again", [&] { recorded_again(words, kernels); });
    program.section("polled_beside_legacy", [&] { polled_beside_legacy(words, kernels); });
    program.section("found_busy_and_waited_for", [&] { found_busy_and_waited_for(words, kernels); });
    program.section("legacy_rules", [&] { legacy_rules(words, kernels); });
    program.section("destroyed_while_busy", [&] { destroyed_while_busy(words, kernels); });
    program.section("memory_operations", [&] { memory_operations(device, words, kernels); });
    program.section("host_functions", [&] { host_functions(words, kernels); });
    program.section("polled_beside_legacy_and_prints", [&] { polled_beside_legacy_and_prints(words, kernels); });
    return program.finish();
}
