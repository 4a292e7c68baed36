// Contexts: the primary one (state, flags, retain, release, reset), created ones, each thread's stack, limits, and the
// remains of a destroyed context.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"
#include "tests/gpu/latch.h"
#include "tests/support/waiting.h"

using namespace gpupool::programs;

namespace {

CUcontext current() {
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    return context;
}

bool primary_is_active(CUdevice device, unsigned* flags = nullptr) {
    unsigned seen_flags = 0;
    int active = -1;
    DRIVER_OK(cuDevicePrimaryCtxGetState(device, &seen_flags, &active));
    if (flags != nullptr) {
        *flags = seen_flags;
    }
    return active == 1;
}

CUcontext create(CUdevice device, unsigned flags = 0) {
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxCreate(&context, nullptr, flags, device));
    return context;
}

void primary(CUdevice device) {
    check(current() == nullptr, "no context is current to begin with");
    check(!primary_is_active(device), "the primary context is not active to begin with");
    DRIVER_OK(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC));
    unsigned flags = 0;
    primary_is_active(device, &flags);
    check((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "flags of the inactive primary context (%u)",
          flags);

    CUcontext first = nullptr, second = nullptr;
    DRIVER_OK(cuDevicePrimaryCtxRetain(&first, device));
    DRIVER_OK(cuDevicePrimaryCtxRetain(&second, device));
    check(first != nullptr && first == second, "retaining twice gives one context");
    check(primary_is_active(device, &flags), "it is active now");
    check((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "with the flags set before (%u)", flags);
    check(current() == nullptr, "retaining does not make it current");

    DRIVER_OK(cuCtxSetCurrent(first));
    check(current() == first, "it is current once set");
    CUdevice seen_device = -1;
    DRIVER_OK(cuCtxGetDevice(&seen_device));
    check(seen_device == device, "its device");
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, 1000));
    DRIVER_OK(cuDevicePrimaryCtxRelease(device));
    check(primary_is_active(device), "still active after one of two releases");
    DRIVER_OK(cuMemsetD8(block, 1, 1000));
    DRIVER_OK(cuCtxSynchronize());

    DRIVER_OK(cuDevicePrimaryCtxReset(device));
    check(!primary_is_active(device), "inactive after a reset");
    check(cuMemAlloc(&block, 1000) != CUDA_SUCCESS, "and it provides no memory");
    DRIVER_OK(cuCtxSetCurrent(nullptr));
    DRIVER_OK(cuDevicePrimaryCtxRetain(&first, device));
    DRIVER_OK(cuCtxSetCurrent(first));
    check_result(cuMemAlloc(&block, 1000), CUDA_SUCCESS, "retained again, it works again");
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuCtxSetCurrent(nullptr));
    DRIVER_OK(cuDevicePrimaryCtxRelease(device));
    // The driver decides whether a reset forgets earlier retains; one release too many is an error either way.
    CUresult result = CUDA_SUCCESS;
    for (int more = 0; more < 3 && result == CUDA_SUCCESS; more++) {
        note("active before release %d more: %d", more + 1, primary_is_active(device));
        result = cuDevicePrimaryCtxRelease(device);
    }
    check_result(result, CUDA_ERROR_INVALID_CONTEXT, "a release too many");
    check(!primary_is_active(device), "inactive after the last release");
    DRIVER_OK(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_AUTO));
}

void stack(CUdevice device) {
    CUcontext popped = nullptr;
    check_result(cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT, "popping an empty stack");
    const CUcontext a = create(device);
    check(current() == a, "a created context is current");
    const CUcontext b = create(device);
    check(a != b && current() == b, "a second one is on top of it");
    DRIVER_OK(cuCtxPushCurrent(a));
    DRIVER_OK(cuCtxPopCurrent(&popped));
    check(popped == a && current() == b, "pushed and popped");
    DRIVER_OK(cuCtxSetCurrent(a));
    check(current() == a, "set replaces the top of the stack");
    DRIVER_OK(cuCtxPopCurrent(&popped));
    check(popped == a && current() == a, "below it is the first context again");
    DRIVER_OK(cuCtxPopCurrent(&popped));
    check(popped == a && current() == nullptr, "and the stack is empty");

    DRIVER_OK(cuCtxPushCurrent(a));
    CUcontext elsewhere = a;
    std::thread([&] { elsewhere = current(); }).join();
    check(elsewhere == nullptr, "a new thread has no current context");
    std::thread([&] {
        DRIVER_OK(cuCtxSetCurrent(b));
        elsewhere = current();
    }).join();
    check(elsewhere == b && current() == a, "each thread has its own");
    unsigned long long id_a = 0, id_b = 0;
    DRIVER_OK(cuCtxGetId(a, &id_a));
    DRIVER_OK(cuCtxGetId(b, &id_b));
    check(id_a != id_b, "ids of two contexts differ");
    DRIVER_OK(cuCtxDestroy(b));
    check(current() == a, "destroying another context leaves the current one");
    DRIVER_OK(cuCtxDestroy(a));
    check(current() == nullptr, "destroying the current context pops it");
}

void queries(CUdevice device) {
    const CUcontext context = create(device, CU_CTX_SCHED_SPIN);
    unsigned flags = 0, version = 0;
    DRIVER_OK(cuCtxGetFlags(&flags));
    check((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN, "flags of a created context (%u)", flags);
    DRIVER_OK(cuCtxGetApiVersion(context, &version));
    check(version >= 3020, "its API version (%u)", version);
    size_t bytes = 0;
    DRIVER_OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
    check(bytes > 0, "default stack size: %zu bytes", bytes);
    DRIVER_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    DRIVER_OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
    check(bytes >= 4096, "stack size once set: %zu bytes", bytes);
    DRIVER_OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20));
    DRIVER_OK(cuCtxGetLimit(&bytes, CU_LIMIT_PRINTF_FIFO_SIZE));
    check(bytes >= 2 << 20, "printf buffer once set: %zu bytes", bytes);
    check(cuCtxGetLimit(&bytes, static_cast<CUlimit>(99)) != CUDA_SUCCESS, "a limit that is none");
    int least = 99, greatest = 99;
    DRIVER_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    check(least == 0 && greatest <= 0, "stream priorities: %d to %d", least, greatest);
    CUfunc_cache cache{};
    DRIVER_OK(cuCtxGetCacheConfig(&cache));
    DRIVER_OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuCtxDestroy(context));
}

// A context's memory ends with it. A thread that still has it current gets an error.
void destroyed(CUdevice device) {
    const CUcontext observer = create(device);
    const CUcontext doomed = create(device);
    // The module ends with its context, so unloading it later would be a use after free. Hence no destructor.
    static const Module* const module = new Module(kernels_ptx().data);
    CUdeviceptr block = 0;
    size_t before = 0, held = 0, after = 0, total = 0;
    DRIVER_OK(cuMemGetInfo(&before, &total));
    DRIVER_OK(cuMemAlloc(&block, 64 << 20));
    DRIVER_OK(launch(module->function("store_word"), 1, 1, nullptr, block, 7u));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMemGetInfo(&held, &total));
    check(held + (64 << 20) <= before, "64 MiB are held by the context");

    CUresult elsewhere = CUDA_SUCCESS;
    std::thread thread([&] {
        DRIVER_OK(cuCtxSetCurrent(doomed));
        std::thread([&] {
            DRIVER_OK(cuCtxSetCurrent(doomed));
            DRIVER_OK(cuCtxDestroy(doomed));
        }).join();
        CUdeviceptr none = 0;
        elsewhere = cuMemAlloc(&none, 1000);
        cuCtxSetCurrent(nullptr);
    });
    thread.join();
    check_result(elsewhere, CUDA_ERROR_CONTEXT_IS_DESTROYED, "memory from a context that another thread destroyed");
    DRIVER_OK(cuCtxSetCurrent(observer));
    DRIVER_OK(cuMemGetInfo(&after, &total));
    check(after >= held + (64 << 20), "its memory is free again");
    DRIVER_OK(cuCtxDestroy(observer));
}

// Creates one context after another. The objects of a context may end with it.
void one_after_another(CUdevice device) {
    for (int round = 0; round < 3; round++) {
        const CUcontext context = create(device);
        CUstream stream = nullptr;
        DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CUdeviceptr block = 0;
        DRIVER_OK(cuMemAlloc(&block, 4 << 20));
        for (const size_t bytes : {size_t{64}, size_t{5000}, size_t{60000}, size_t{4} << 20}) {
            std::vector<unsigned char> up(bytes, static_cast<unsigned char>(round + 1)), down(bytes);
            DRIVER_OK(cuMemcpyHtoD(block, up.data(), bytes));
            DRIVER_OK(cuMemcpyDtoH(down.data(), block, bytes));
            check(up == down, "%zu bytes to the device and back in context %d", bytes, round);
        }
        int calls = 0;
        DRIVER_OK(cuLaunchHostFunc(
            stream, [](void* seen) { ++*static_cast<int*>(seen); }, &calls));
        DRIVER_OK(cuStreamSynchronize(stream));
        check(calls == 1, "a host function ran in context %d", round);
        DRIVER_OK(cuCtxDestroy(context));
    }
}

// Waiting for one context completes no other context's streams, and no later work.
void waiting_for_one_of_two(CUdevice device) {
    const CUcontext idle = create(device), busy = create(device);
    CUstream stream = nullptr, other = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int round = 0; round < 2; round++) {
        Latch held;
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuLaunchHostFunc(stream, Latch::wait, &held));
        DRIVER_OK(cuEventRecord(event, stream));
        DRIVER_OK(cuCtxSetCurrent(idle));
        for (int i = 0; i < 2; i++) {
            DRIVER_OK(cuCtxSynchronize());
            DRIVER_OK(cuStreamSynchronize(CU_STREAM_LEGACY));
            check_result(cuStreamQuery(CU_STREAM_LEGACY), CUDA_SUCCESS, "the idle context's stream");
            check_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY, "the other's stream, which is held");
            check_result(cuEventQuery(event), CUDA_ERROR_NOT_READY, "and its event");
        }
        DRIVER_OK(cuCtxSetCurrent(busy));
        DRIVER_OK(cuStreamSynchronize(other));
        check_result(cuStreamQuery(other), CUDA_SUCCESS, "another stream of the busy context");
        check_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY, "the held one still");
        held.open();
        DRIVER_OK(round == 0 ? cuEventSynchronize(event) : cuStreamSynchronize(stream));
        check(held.over() && !held.late(), "it has been waited for");
        DRIVER_OK(cuEventSynchronize(event));
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        check_result(cuStreamQuery(stream), CUDA_SUCCESS, "it is done");
    }
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuStreamDestroy(other));
    DRIVER_OK(cuCtxDestroy(busy));
    DRIVER_OK(cuCtxDestroy(idle));
}

// Memory that is freed while another context's copy reads it keeps its content until the copy has read it.
void freed_while_another_reads(CUdevice device) {
    constexpr size_t kBytes = 4096;
    const CUcontext owner = create(device), reader = create(device);
    CUstream stream = nullptr;
    CUdeviceptr to = 0, from = 0, next = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&to, kBytes));
    DRIVER_OK(cuCtxSetCurrent(owner));
    DRIVER_OK(cuMemAlloc(&from, kBytes));
    DRIVER_OK(cuMemsetD8(from, 1, kBytes));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuCtxSetCurrent(reader));
    Latch held;
    DRIVER_OK(cuLaunchHostFunc(stream, Latch::wait, &held));
    DRIVER_OK(cuMemcpyDtoDAsync(to, from, kBytes, stream));
    // Opened once the free waits, if it does. A driver may spin instead of sleeping, hence the timeout.
    std::thread later([&, caller = ::gettid()] {
        (void)gpupool::test::wait_until_blocked(caller, std::chrono::milliseconds(200));
        held.open();
    });
    DRIVER_OK(cuCtxSetCurrent(owner));
    DRIVER_OK(cuMemFree(from));
    note("freed %s", held.over() ? "when the copy could be made" : "at once");
    DRIVER_OK(cuMemAlloc(&next, kBytes));
    DRIVER_OK(cuMemsetD8(next, 2, kBytes));
    DRIVER_OK(cuCtxSynchronize());
    later.join();
    DRIVER_OK(cuCtxSetCurrent(reader));
    DRIVER_OK(cuStreamSynchronize(stream));
    unsigned char seen[kBytes] = {};
    DRIVER_OK(cuMemcpyDtoH(seen, to, kBytes));
    check(std::count(std::begin(seen), std::end(seen), 1) == static_cast<long>(kBytes),
          "the copy read what was there: %u", seen[0]);
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuCtxDestroy(reader));
    DRIVER_OK(cuCtxDestroy(owner));
}

// Freeing memory of one device does not wait for another device's work, even with peer access, because that work may
// wait for the freeing thread.
void freed_beside_a_peer(CUdevice device) {
    int count = 0, reaches = 0;
    DRIVER_OK(cuDeviceGetCount(&count));
    CUdevice other = 0;
    if (count > 1) {
        DRIVER_OK(cuDeviceGet(&other, 1));
        DRIVER_OK(cuDeviceCanAccessPeer(&reaches, other, device));
    }
    if (reaches == 0) {
        check(count > 0, "without two devices that reach each other there is nothing to see");
        return;
    }
    const CUcontext owner = create(device), peer = create(other);
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (const bool with_access : {false, true}) {
        if (with_access) {
            DRIVER_OK(cuCtxEnablePeerAccess(owner, 0));
        }
        CUdeviceptr block = 0;
        DRIVER_OK(cuCtxSetCurrent(owner));
        DRIVER_OK(cuMemAlloc(&block, 4096));
        DRIVER_OK(cuCtxSetCurrent(peer));
        Latch held;
        DRIVER_OK(cuLaunchHostFunc(stream, Latch::wait, &held));
        check_result(cuMemFree(block), CUDA_SUCCESS, "memory of the one device is freed while the other works");
        check(!held.over(), "%s peer access the free does not wait", with_access ? "with" : "without");
        held.open();
        DRIVER_OK(cuStreamSynchronize(stream));
    }
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuCtxDestroy(peer));
    DRIVER_OK(cuCtxDestroy(owner));
}

// Memory of pools and graphs that outlives the context in whose stream it was allocated.
enum class Source { default_pool, own_pool, graph };
struct Outliving {
    Source source;
    bool of_primary;
    CUmemoryPool pool = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr memory = 0;
};
constexpr size_t kOutlivingBytes = 4 << 20;

CUgraph graph_that_allocates(CUdevice device, CUdeviceptr& memory) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUgraphNodeParams node{};
    node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    node.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    node.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    node.alloc.poolProps.location.id = device;
    node.alloc.bytesize = kOutlivingBytes;
    CUgraphNode added = nullptr;
    DRIVER_OK(cuGraphAddNode(&added, graph, nullptr, nullptr, 0, &node));
    memory = node.alloc.dptr;
    return graph;
}

void allocate_in_current(CUdevice device, Outliving& it) {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    if (it.source == Source::default_pool) {
        DRIVER_OK(cuDeviceGetDefaultMemPool(&it.pool, device));
        DRIVER_OK(cuMemAllocAsync(&it.memory, kOutlivingBytes, stream));
    } else if (it.source == Source::own_pool) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        DRIVER_OK(cuMemPoolCreate(&it.pool, &properties));
        DRIVER_OK(cuMemAllocFromPoolAsync(&it.memory, kOutlivingBytes, it.pool, stream));
    } else {
        it.graph = graph_that_allocates(device, it.memory);
        DRIVER_OK(cuGraphInstantiate(&it.executable, it.graph, 0));
        DRIVER_OK(cuGraphLaunch(it.executable, stream));
    }
    DRIVER_OK(cuMemsetD32Async(it.memory, 17, kOutlivingBytes / 4, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
}

unsigned long long used_bytes(CUdevice device, const Outliving& it) {
    cuuint64_t used = 0;
    if (it.source == Source::graph) {
        DRIVER_OK(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    } else {
        DRIVER_OK(cuMemPoolGetAttribute(it.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    }
    return used;
}

// Uses and frees it in another context, which is current.
void use_after_the_end(CUdevice device, Outliving& it, CUstream stream) {
    check(used_bytes(device, it) >= kOutlivingBytes, "it still counts as used");
    CUcontext context = nullptr;
    DRIVER_OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, it.memory));
    check(context == nullptr, "it has no context");
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, it.memory + kOutlivingBytes - 4, 4));
    check(word == 17, "it keeps its contents (%u)", word);
    DRIVER_OK(cuMemsetD32Async(it.memory, 18, 16, stream));
    DRIVER_OK(cuMemcpyDtoHAsync(&word, it.memory, 4, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(word == 18, "it can be written (%u)", word);
    if (it.source == Source::graph) {
        check_result(cuGraphLaunch(it.executable, stream), CUDA_ERROR_INVALID_VALUE, "the launch of its graph");
        CUdeviceptr other = 0;
        const CUgraph next = graph_that_allocates(device, other);
        check(other != it.memory, "another graph gets another address");
        DRIVER_OK(cuGraphDestroy(next));
    }
}

void outliving(CUdevice device, Outliving it, const char* how) {
    const CUcontext observer = create(device);
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUcontext owner = nullptr;
    if (it.of_primary) {
        DRIVER_OK(cuDevicePrimaryCtxRetain(&owner, device));
        DRIVER_OK(cuCtxSetCurrent(owner));
    } else {
        owner = create(device);
    }
    allocate_in_current(device, it);
    if (it.of_primary) {
        DRIVER_OK(cuDevicePrimaryCtxReset(device));
        DRIVER_OK(cuDevicePrimaryCtxRelease(device));
    } else {
        DRIVER_OK(cuCtxDestroy(owner));
    }
    DRIVER_OK(cuCtxSetCurrent(observer));
    use_after_the_end(device, it, stream);
    if (how == std::string_view("in stream order")) {
        DRIVER_OK(cuMemFreeAsync(it.memory, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
    } else if (how == std::string_view("without a context")) {
        std::thread([&] { DRIVER_OK(cuMemFree(it.memory)); }).join();
    } else {
        DRIVER_OK(cuMemFree(it.memory));
    }
    check_result(cuMemFree(it.memory), CUDA_ERROR_INVALID_VALUE, "freeing it again");
    if (it.source == Source::own_pool) {
        cuuint64_t reserved = 0;  // natively, what cuMemFree has freed stays in the number of used bytes for ever
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuMemPoolTrimTo(it.pool, 0));
        DRIVER_OK(cuMemPoolGetAttribute(it.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
        check(reserved == 0, "it was freed %s: its pool is empty", how);
        DRIVER_OK(cuMemPoolDestroy(it.pool));
    }
    if (it.source == Source::graph) {
        DRIVER_OK(cuGraphExecDestroy(it.executable));
        DRIVER_OK(cuGraphDestroy(it.graph));
        DRIVER_OK(cuDeviceGraphMemTrim(device));
        check(used_bytes(device, it) == 0, "it was freed %s: no graph memory is used", how);
    }
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuCtxDestroy(observer));
}

void outliving_memory(CUdevice device) {
    for (const Source source : {Source::default_pool, Source::own_pool, Source::graph}) {
        for (const bool of_primary : {false, true}) {
            for (const char* how : {"at once", "in stream order", "without a context"}) {
                outliving(device, {source, of_primary}, how);
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    Program program("contexts", argc, argv);
    DRIVER_OK(cuInit(0));
    CUdevice device = 0;
    DRIVER_OK(cuDeviceGet(&device, 0));
    program.section("primary", [&] { primary(device); });
    program.section("stack", [&] { stack(device); });
    program.section("queries", [&] { queries(device); });
    program.section("destroyed", [&] { destroyed(device); });
    program.section("one_after_another", [&] { one_after_another(device); });
    program.section("waiting_for_one_of_two", [&] { waiting_for_one_of_two(device); });
    program.section("freed_while_another_reads", [&] { freed_while_another_reads(device); });
    program.section("freed_beside_a_peer", [&] { freed_beside_a_peer(device); });
    program.section("outliving_memory", [&] { outliving_memory(device); });
    return program.finish();
}
