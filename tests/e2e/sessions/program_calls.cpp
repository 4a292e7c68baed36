// Modes that make calls that need not wait for the server:
//
//   polls                queries a stream and an event, which are blocked, a thousand times each, then until they are
//                        complete
//   deferred             launches, sets memory, records and waits for an event, and prints "allocations NUMBER", or
//                        "uncounted"
//   batches              sends ten batches of 5,000 copies on the device
//   allocating           allocates and frees device memory, plainly and in stream order, and prints the same
//   destroyed_in_capture destroys a capturing stream that still copies to the host, and prints "word NUMBER", the
//                        copied word, and "joined NUMBER", the word that a stream set that had
//                        joined the capture
//   failure_waited_for   makes a deferred call that fails, and waits for it by way of two events and two streams
//   failed_captures      captures such a call into a new graph and into an existing one
//   freed_behind_work    frees ordinary memory in stream order, behind work that does not end yet
//   kernels_beside_work  looks up kernels in libraries that are not loaded yet while a stream is blocked, and launches
//                        them later; prints "waited 0" if no look-up waited for the stream
//   detached             attaches to a context, and detaches until it has ended and beyond
//   linker               several threads add to one linker at a time; prints "globals NUMBER", of what was linked

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/allocations.h"

namespace gpupool::session_program {
namespace {

constexpr int kQuestions = 1000, kCalls = 10'000;

int run_polls() {
    begin();
    CUstream stream = nullptr;
    CUevent event = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    block_until_release(stream);
    must(driver.cuEventRecord(event, stream), "cuEventRecord");
    for (int i = 0; i < kQuestions; ++i) {
        if (driver.cuStreamQuery(stream) != CUDA_ERROR_NOT_READY ||
            driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY) {
            say("ready too soon");
            return 4;
        }
    }
    release();
    while (driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
    }
    must(driver.cuStreamQuery(stream), "cuStreamQuery");
    while (driver.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
    }
    must(driver.cuEventQuery(event), "cuEventQuery");
    must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    return driver.cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE ? 0 : 5;
}

// Prints the number of allocations that `calls` makes in this thread.
template <class Calls>
void say_allocations(Calls&& calls) {
    const bool counts = test::count_allocations();
    const std::uint64_t before = test::allocations_of_thread;
    calls();
    say(counts ? "allocations" : "uncounted", static_cast<long long>(test::allocations_of_thread - before));
}

int run_deferred() {
    begin();
    const CUfunction function = kernel("add_value");
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(driver.cuMemAlloc(&data, 256), "cuMemAlloc");
    const auto calls = [&](int count) {
        for (int i = 0; i < count; ++i) {
            add(function, data, 1, 1, stream);
            must(driver.cuMemsetD32Async(data + 128, 0, 1, stream), "cuMemsetD32Async");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            must(driver.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
        }
    };
    calls(100);
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    say_allocations([&] { calls(kCalls / 4); });
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

int run_batches() {
    begin();
    constexpr std::size_t kCopies = 5000, kBytes = 64;
    const auto copy_batch =
        reinterpret_cast<decltype(&cuMemcpyBatchAsync)>(dlsym(driver.library, "cuMemcpyBatchAsync_v2"));
    CUstream stream = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, 2 * kCopies * kBytes), "cuMemAlloc");
    std::vector<CUdeviceptr> to, from;
    std::vector<std::size_t> bytes(kCopies, kBytes);
    for (std::size_t i = 0; i < kCopies; ++i) {
        from.push_back(data + i * kBytes);
        to.push_back(data + (kCopies + i) * kBytes);
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    for (int i = 0; i < 10; ++i) {
        must(copy_batch(to.data(), from.data(), bytes.data(), kCopies, &attributes, &first, 1, stream),
             "cuMemcpyBatchAsync");
    }
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

int run_allocating() {
    begin();
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, 0), "cuStreamCreate");
    const auto calls = [&](int count) {
        for (int i = 0; i < count; ++i) {
            CUdeviceptr data = 0;
            must(driver.cuMemAlloc(&data, 4096), "cuMemAlloc");
            must(driver.cuMemFree(data), "cuMemFree");
            must(driver.cuMemAllocAsync(&data, 4096, stream), "cuMemAllocAsync");
            must(driver.cuMemFreeAsync(data, stream), "cuMemFreeAsync");
        }
    };
    calls(kCalls / 4);
    say_allocations([&] { calls(kCalls / 4); });
    return 0;
}

int run_destroyed_in_capture() {
    begin();
    CUstream stream = nullptr, joined = nullptr;
    CUevent event = nullptr;
    CUdeviceptr data = 0;
    void* pinned = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(driver.cuMemAlloc(&data, 2 * sizeof(unsigned)), "cuMemAlloc");
    must(driver.cuMemHostAlloc(&pinned, sizeof(unsigned), 0), "cuMemHostAlloc");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    auto& word = *static_cast<unsigned*>(pinned);
    word = 1;
    block_until_release(stream);
    must(driver.cuMemsetD32Async(data, 7, 1, stream), "cuMemsetD32Async");
    must(driver.cuMemcpyDtoHAsync(&word, data, sizeof word, stream), "cuMemcpyDtoHAsync");
    must(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    must(driver.cuEventRecord(event, stream), "cuEventRecord");
    must(driver.cuStreamWaitEvent(joined, event, 0), "cuStreamWaitEvent");
    must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    // The capture is over: this runs.
    must(driver.cuMemsetD32Async(data + sizeof word, 9, 1, joined), "cuMemsetD32Async");
    must(driver.cuStreamSynchronize(joined), "cuStreamSynchronize");
    unsigned other = 0;
    must(driver.cuMemcpyDtoHAsync(&other, data + sizeof word, sizeof other, joined), "cuMemcpyDtoHAsync");
    must(driver.cuStreamSynchronize(joined), "cuStreamSynchronize");
    say("joined", other);
    release();
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    say("word", word);
    // A capture ends with its context, so calls in the next context are not refused because of it.
    must(driver.cuStreamBeginCapture(joined, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    must(driver.cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
    begin();
    must(driver.cuMemAlloc(&data, sizeof(unsigned)), "cuMemAlloc");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return 0;
}

int run_detached() {
    begin();
    // cuda.h deprecates both.
    const auto attach = reinterpret_cast<CUresult (*)(CUcontext*, unsigned)>(dlsym(driver.library, "cuCtxAttach"));
    const auto detach = reinterpret_cast<CUresult (*)(CUcontext)>(dlsym(driver.library, "cuCtxDetach"));
    CUcontext context = nullptr, attached = nullptr;
    must(driver.cuCtxCreate(&context, nullptr, 0, 0), "cuCtxCreate");
    must(attach(&attached, 0), "cuCtxAttach");
    must(detach(context), "cuCtxDetach");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    must(detach(context), "cuCtxDetach of the last");
    for (int i = 0; i < 2; ++i) {
        if (detach(context) != CUDA_ERROR_INVALID_CONTEXT) {
            return 4;
        }
    }
    return attached == context ? 0 : 5;
}

int run_linker() {
    constexpr int kThreads = 4, kUnits = 8;
    const CUcontext context = begin();
    CUlinkState state = nullptr;
    must(driver.cuLinkCreate(0, nullptr, nullptr, &state), "cuLinkCreate");
    const auto name_of = [](int thread, int unit) {
        return "word_" + std::to_string(thread) + "_" + std::to_string(unit);
    };
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
            use(context);
            for (int unit = 0; unit < kUnits; ++unit) {
                std::string source = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .u32 " +
                                     name_of(thread, unit) + ";\n";
                must(driver.cuLinkAddData(state, CU_JIT_INPUT_PTX, source.data(), source.size() + 1,
                                          name_of(thread, unit).c_str(), 0, nullptr, nullptr),
                     "cuLinkAddData");
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    void* code = nullptr;
    std::size_t bytes = 0;
    CUmodule linked = nullptr;
    must(driver.cuLinkComplete(state, &code, &bytes), "cuLinkComplete");
    must(driver.cuModuleLoadData(&linked, code), "cuModuleLoadData");
    must(driver.cuLinkDestroy(state), "cuLinkDestroy");
    int found = 0;
    for (int thread = 0; thread < kThreads; ++thread) {
        for (int unit = 0; unit < kUnits; ++unit) {
            CUdeviceptr address = 0;
            found += driver.cuModuleGetGlobal(&address, &bytes, linked, name_of(thread, unit).c_str()) == CUDA_SUCCESS;
        }
    }
    must(driver.cuModuleUnload(linked), "cuModuleUnload");
    say("globals", found);
    return 0;
}

// Makes a deferred call that the server refuses: only the driver knows whether mapped memory may be accessed.
class Failing {
  public:
    Failing() {
        constexpr std::size_t kBytes = 2u << 20;
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CUmemGenericAllocationHandle handle = 0;
        must(driver.cuMemCreate(&handle, kBytes, &properties, 0), "cuMemCreate");
        must(driver.cuMemAddressReserve(&block_, kBytes, 0, 0, 0), "cuMemAddressReserve");
        must(driver.cuMemMap(block_, kBytes, 0, handle, 0), "cuMemMap");
    }
    [[nodiscard]] CUresult call(CUstream stream) const { return driver.cuMemsetD32Async(block_, 1, 256, stream); }

  private:
    CUdeviceptr block_ = 0;
};

int run_failure_waited_for() {
    begin();
    const Failing failing;
    CUstream streams[3] = {};
    CUevent events[2] = {};
    for (CUstream& stream : streams) {
        must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    for (CUevent& event : events) {
        must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    must(failing.call(streams[0]), "cuMemsetD32Async");
    for (int i = 0; i < 2; ++i) {
        must(driver.cuEventRecord(events[i], streams[i]), "cuEventRecord");
        must(driver.cuStreamWaitEvent(streams[i + 1], events[i], 0), "cuStreamWaitEvent");
    }
    if (driver.cuStreamSynchronize(streams[2]) == CUDA_SUCCESS) {
        return 6;
    }
    must(driver.cuStreamSynchronize(streams[2]), "the second cuStreamSynchronize");
    return 0;
}

int run_freed_behind_work() {
    constexpr std::size_t kBytes = 1u << 20;
    begin();
    CUstream stream = nullptr;
    CUdeviceptr data = 0, other = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, kBytes), "cuMemAlloc");
    block_until_release(stream);
    must(driver.cuMemsetD8Async(data, 1, kBytes, stream), "cuMemsetD8Async");
    must(driver.cuMemFreeAsync(data, stream), "cuMemFreeAsync");
    if (driver.cuMemFreeAsync(data, stream) == CUDA_SUCCESS) {
        return 10;
    }
    for (int i = 0; i < 8; ++i) {  // not reused as long as work uses it
        must(driver.cuMemAlloc(&other, kBytes), "cuMemAlloc");
        if (other == data) {
            return 11;
        }
    }
    release();
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

int run_failed_captures() {
    begin();
    const Failing failing;
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    must(failing.call(stream), "cuMemsetD32Async");
    CUgraph graph = reinterpret_cast<CUgraph>(1);
    if (driver.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS || graph != nullptr) {
        return 7;
    }
    CUgraph given = nullptr;
    CUgraphExec executable = nullptr;
    must(driver.cuGraphCreate(&given, 0), "cuGraphCreate");
    must(driver.cuStreamBeginCaptureToGraph(stream, given, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL),
         "cuStreamBeginCaptureToGraph");
    must(failing.call(stream), "cuMemsetD32Async");
    if (driver.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS || graph != nullptr) {
        return 8;
    }
    if (driver.cuGraphInstantiateWithFlags(&executable, given, 0) == CUDA_SUCCESS) {
        return 9;
    }
    must(driver.cuGraphDestroy(given), "cuGraphDestroy");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

int run_kernels_beside_work() {
    constexpr unsigned kLibraries = 3;
    begin();
    CUstream busy = nullptr, stream = nullptr;
    must(driver.cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    CUdeviceptr data = 0;
    must(driver.cuMemAlloc(&data, sizeof(unsigned)), "cuMemAlloc");
    must(driver.cuMemsetD32Async(data, 0, 1, stream), "cuMemsetD32Async");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");

    const std::string image = kernels_ptx();
    block_until_release(busy);
    std::binary_semaphore looked_up(0);
    std::atomic<bool> waited{false};
    std::thread watch([&] {
        waited = !looked_up.try_acquire_for(std::chrono::seconds(20));
        release();
    });
    CUlibrary libraries[kLibraries];
    CUkernel kernels[kLibraries];
    for (unsigned i = 0; i < kLibraries; ++i) {
        must(driver.cuLibraryLoadData(&libraries[i], image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
        must(driver.cuLibraryGetKernel(&kernels[i], libraries[i], "add_value"), "cuLibraryGetKernel");
        if (driver.cuLibraryGetKernel(&kernels[i], libraries[i], "no_kernel") != CUDA_ERROR_NOT_FOUND) {
            return 4;
        }
    }
    looked_up.release();
    watch.join();
    const char* name = nullptr;  // the name stays valid while the library does, also once the kernel is loaded
    must(driver.cuKernelGetName(&name, kernels[1]), "cuKernelGetName");
    say("waited", waited);

    std::size_t offset = 0, bytes = 0;
    must(driver.cuKernelGetParamInfo(kernels[1], 1, &offset, &bytes), "cuKernelGetParamInfo");
    if (offset != 8 || bytes != 4) {
        return 5;
    }
    must(driver.cuKernelGetFunction(reinterpret_cast<CUfunction*>(&kernels[2]), kernels[2]), "cuKernelGetFunction");
    for (const CUkernel kernel : kernels) {
        add(reinterpret_cast<CUfunction>(kernel), data, 1, 5, stream);
    }
    unsigned sum = 0;
    must(driver.cuMemcpyDtoHAsync(&sum, data, sizeof sum, stream), "cuMemcpyDtoHAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuStreamSynchronize(busy), "cuStreamSynchronize");
    if (name != std::string("add_value")) {
        return 7;
    }
    for (const CUlibrary library : libraries) {
        must(driver.cuLibraryUnload(library), "cuLibraryUnload");
    }
    return sum == 5 * kLibraries ? 0 : 6;
}

}  // namespace

int run_calls(const std::string& mode) {
    return mode == "polls"                  ? run_polls()
           : mode == "deferred"             ? run_deferred()
           : mode == "batches"              ? run_batches()
           : mode == "allocating"           ? run_allocating()
           : mode == "destroyed_in_capture" ? run_destroyed_in_capture()
           : mode == "detached"             ? run_detached()
           : mode == "linker"               ? run_linker()
           : mode == "freed_behind_work"    ? run_freed_behind_work()
           : mode == "failure_waited_for"   ? run_failure_waited_for()
           : mode == "failed_captures"      ? run_failed_captures()
           : mode == "kernels_beside_work"  ? run_kernels_beside_work()
                                            : -1;
}

}  // namespace gpupool::session_program
