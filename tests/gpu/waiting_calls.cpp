// Calls that wait for the GPU (to load, unload, free, make room for local memory) while the GPU waits for the program:
// for a host function, or a graph's host node. Other threads' driver calls may have to wait meanwhile, but all of them
// must end, the function first. Setting: function_ms, how long it takes.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

using std::chrono::milliseconds;

// Its end and the pace of the threads beside it are set by the clock: a driver may spin while its calls wait, and may
// let other threads' calls wait as well, so neither shows that a call has begun to wait.
struct Function {
    milliseconds takes;
    std::atomic<unsigned> ended{0};

    static void CUDA_CB run(void* self) {
        auto& function = *static_cast<Function*>(self);
        std::this_thread::sleep_for(function.takes);
        function.ended.fetch_add(1);
    }
};

CUDA_KERNEL_NODE_PARAMS one_thread(CUfunction function, void** parameters) {
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = function;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = parameters;
    return kernel;
}

CUgraphNode add_kernel(CUgraph graph, CUgraphNode* after, CUfunction function, void** parameters) {
    const CUDA_KERNEL_NODE_PARAMS kernel = one_thread(function, parameters);
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, after, after == nullptr ? 0 : 1, &kernel));
    return node;
}

class Waiting {
  public:
    Waiting(const Device& device, const Module& module, milliseconds takes)
        : device_(device), module_(module), add_(module.function("add_value")) {
        function_.takes = takes;
        for (CUstream* stream : {&busy_, &recorded_, &working_}) {
            DRIVER_OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
        }
        DRIVER_OK(cuMemAlloc(&words_, 64 * sizeof(unsigned)));
        DRIVER_OK(cuMemsetD32(words_, 0, 64));
        // A first launch may wait for the device as well; another section tests that.
        DRIVER_OK(launch(add_, 1, 1, working_, counter(), 1u, 0u));
        CUDA_HOST_NODE_PARAMS host{Function::run, &function_};
        CUgraphNode node = nullptr;
        DRIVER_OK(cuGraphCreate(&graph_, 0));
        DRIVER_OK(cuGraphAddHostNode(&node, graph_, nullptr, 0, &host));
        DRIVER_OK(cuGraphInstantiate(&executable_, graph_, 0));
        DRIVER_OK(cuCtxSynchronize());
    }
    ~Waiting() {
        cuGraphExecDestroy(executable_);
        cuGraphDestroy(graph_);
        cuMemFree(words_);
        for (CUstream stream : {busy_, recorded_, working_}) {
            cuStreamDestroy(stream);
        }
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

    const Device& device() const { return device_; }
    const Module& module() const { return module_; }
    CUfunction add() const { return add_; }
    CUdeviceptr counter() const { return words_; }
    CUdeviceptr local_words() const { return words_ + 32 * sizeof(unsigned); }
    CUstream busy() const { return busy_; }
    Function& function() { return function_; }

    // Makes `call` while a stream runs a host function, then beside a graph's, while other threads work.
    template <class Call>
    void run(const char* what, Call call) {
        beside(
            what, "a host function", [&] { return cuLaunchHostFunc(busy_, Function::run, &function_); }, call);
        beside(
            what, "a graph's host node", [&] { return cuGraphLaunch(executable_, busy_); }, call);
    }

    // Other threads launch `rounds` times, over half of the function's time or as fast as they can.
    template <class Begin, class Call>
    void beside(const char* what, const char* beside_what, Begin begin, Call call, unsigned rounds = 40,
                bool slowly = true) {
        const unsigned ended = function_.ended;
        DRIVER_OK(begin());
        std::atomic<bool> called{false};
        std::thread caller([&] {
            device_.use();
            std::this_thread::sleep_for(function_.takes / 10);  // time for the GPU to reach the function
            called = true;
            called.notify_all();
            call();
        });
        std::thread recorder([&] {
            device_.use();
            CUevent event = nullptr;
            DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            called.wait(false);
            for (unsigned i = 0; i < 40; i++) {
                std::this_thread::sleep_for(function_.takes / 80);
                DRIVER_OK(cuEventRecord(event, recorded_));
            }
            DRIVER_OK(cuEventSynchronize(event));
            DRIVER_OK(cuEventDestroy(event));
        });
        std::thread worker([&] {
            device_.use();
            called.wait(false);
            for (unsigned i = 0; i < rounds; i++) {
                if (slowly) {
                    std::this_thread::sleep_for(function_.takes / 2 / rounds);
                }
                DRIVER_OK(launch(add_, 1, 1, working_, counter(), 1u, 1u));
            }
            CUstream another = nullptr;
            DRIVER_OK(cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
            DRIVER_OK(cuStreamDestroy(another));
            DRIVER_OK(cuStreamSynchronize(working_));
        });
        caller.join();
        recorder.join();
        worker.join();
        DRIVER_OK(cuCtxSynchronize());
        check(function_.ended == ended + 1, "%s beside %s: the function ran", what, beside_what);
        unsigned counted = 0;
        DRIVER_OK(cuMemcpyDtoH(&counted, counter(), sizeof counted));
        counted_ += rounds;
        check(counted == counted_, "%s beside %s: %u launches of %u", what, beside_what, counted, counted_);
    }

  private:
    const Device& device_;
    const Module& module_;
    const CUfunction add_;
    Function function_;
    CUstream busy_ = nullptr, recorded_ = nullptr, working_ = nullptr;
    CUdeviceptr words_ = 0;
    CUgraph graph_ = nullptr;
    CUgraphExec executable_ = nullptr;
    unsigned counted_ = 0;
};

void load_and_unload(Waiting& waiting) {
    waiting.run("loading a module", [] {
        CUmodule module = nullptr;
        DRIVER_OK(cuModuleLoadData(&module, kernels_ptx().data));
        DRIVER_OK(cuModuleUnload(module));
    });
}

// The function waits for a thread that makes queries, which the driver answers even while other calls wait.
void questions(Waiting& waiting) {
    struct Lock {
        std::atomic<bool> asked{false};
        static void CUDA_CB run(void* self) { static_cast<Lock*>(self)->asked.wait(false); }
    } lock;
    CUstream stream = nullptr, other = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuEventRecord(event, other));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuLaunchHostFunc(stream, Lock::run, &lock));
    std::thread loader([&] {
        waiting.device().use();
        CUmodule module = nullptr;
        DRIVER_OK(cuModuleLoadData(&module, kernels_ptx().data));
        DRIVER_OK(cuModuleUnload(module));
    });
    std::this_thread::sleep_for(waiting.function().takes / 4);  // by now the call waits
    size_t free_bytes = 0, all_bytes = 0;
    DRIVER_OK(cuMemGetInfo(&free_bytes, &all_bytes));
    DRIVER_OK(cuStreamQuery(other));
    DRIVER_OK(cuEventQuery(event));
    DRIVER_OK(cuEventSynchronize(event));
    lock.asked = true;
    lock.asked.notify_all();
    loader.join();
    check(free_bytes != 0, "the driver answered beside a load that waits");
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuStreamDestroy(other));
}

// More work than anything queues for a program must wait to be issued.
void flood(Waiting& waiting) {
    waiting.beside(
        "a flood of launches", "a host function",
        [&] { return cuLaunchHostFunc(waiting.busy(), Function::run, &waiting.function()); },
        [] {
            CUmodule module = nullptr;
            DRIVER_OK(cuModuleLoadData(&module, kernels_ptx().data));
            DRIVER_OK(cuModuleUnload(module));
        },
        60'000, false);
}

void libraries(Waiting& waiting) {
    waiting.run("a library's first use", [&] {
        CUlibrary library = nullptr;
        CUkernel kernel = nullptr;
        CUfunction function = nullptr;
        DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
        DRIVER_OK(cuLibraryGetKernel(&kernel, library, "add_value"));
        DRIVER_OK(cuKernelGetFunction(&function, kernel));
        DRIVER_OK(cuLibraryUnload(library));
        CUmodule module = nullptr;
        DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
        DRIVER_OK(cuLibraryGetModule(&module, library));
        DRIVER_OK(cuLibraryUnload(library));
    });
}

// A kernel look-up loads nothing, so it does not wait; the calls that load do.
void lookups(Waiting& waiting) {
    DRIVER_OK(cuLaunchHostFunc(waiting.busy(), Function::run, &waiting.function()));
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr, none = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "add_value"));
    const CUresult unknown = cuLibraryGetKernel(&none, library, "no_kernel");
    check(unknown == CUDA_ERROR_NOT_FOUND, "a kernel that is not there: %d", unknown);
    const CUresult busy = cuStreamQuery(waiting.busy());
    check(busy == CUDA_ERROR_NOT_READY, "the GPU is still busy when the kernels have been looked up: %d", busy);
    size_t offset = 0, bytes = 0;
    DRIVER_OK(cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
    check(offset == 8 && bytes == 4, "the second parameter: %zu bytes at %zu", bytes, offset);
    DRIVER_OK(cuStreamSynchronize(waiting.busy()));
    DRIVER_OK(cuLibraryUnload(library));
}

// A library's first launch is captured.
void captured(Waiting& waiting) {
    const CUdeviceptr words = waiting.local_words();
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (const CUstreamCaptureMode mode :
         {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL}) {
        CUlibrary library = nullptr;
        CUkernel kernel = nullptr;
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        DRIVER_OK(cuMemsetD32(words, 0, 1));
        DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
        DRIVER_OK(cuStreamBeginCapture(stream, mode));
        DRIVER_OK(cuLibraryGetKernel(&kernel, library, "add_value"));
        DRIVER_OK(launch(reinterpret_cast<CUfunction>(kernel), 1, 1, stream, words, 1u, 3u));
        DRIVER_OK(cuStreamEndCapture(stream, &graph));
        DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
        DRIVER_OK(cuGraphLaunch(executable, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        unsigned word = 0;
        DRIVER_OK(cuMemcpyDtoH(&word, words, sizeof word));
        check(word == 3, "mode %d: the launch ran: %u", mode, word);
        DRIVER_OK(cuGraphExecDestroy(executable));
        DRIVER_OK(cuGraphDestroy(graph));
        DRIVER_OK(cuLibraryUnload(library));
    }
    DRIVER_OK(cuMemsetD32(words, 0, 1));
    DRIVER_OK(cuStreamDestroy(stream));
}

void memory(Waiting& waiting) {
    waiting.run("freeing memory", [] {
        CUdeviceptr device = 0;
        void* host = nullptr;
        CUarray array = nullptr;
        const CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_FLOAT, 1};
        DRIVER_OK(cuMemAlloc(&device, 1 << 20));
        DRIVER_OK(cuMemHostAlloc(&host, 1 << 20, CU_MEMHOSTALLOC_DEVICEMAP));
        DRIVER_OK(cuArrayCreate(&array, &shape));
        DRIVER_OK(cuArrayDestroy(array));
        DRIVER_OK(cuMemFree(device));
        DRIVER_OK(cuMemFreeHost(host));
        std::vector<unsigned char> pages(1 << 20);
        DRIVER_OK(cuMemHostRegister(pages.data(), pages.size(), CU_MEMHOSTREGISTER_DEVICEMAP));
        DRIVER_OK(cuMemHostUnregister(pages.data()));
    });
}

void limits(Waiting& waiting) {
    size_t bytes = 0;
    DRIVER_OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
    waiting.run("a greater stack", [&] { DRIVER_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes += 1024)); });
}

// Kernels with increasing local memory: the driver makes room for all threads of the GPU at the first launch that needs
// it.
void local_memory(Waiting& waiting) {
    unsigned next = 0;
    waiting.run("a launch with more local memory", [&] {
        const CUfunction function = waiting.module().function(next++ == 0 ? "use_local_4k" : "use_local_16k");
        CUstream streams[2] = {};
        for (CUstream& stream : streams) {
            DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        unsigned words[2] = {};
        for (const unsigned i : {0u, 1u}) {
            DRIVER_OK(launch(function, 1, 32, streams[i], waiting.local_words() + i * sizeof(unsigned), 7 + i));
        }
        for (const CUstream stream : streams) {
            DRIVER_OK(cuStreamSynchronize(stream));
            DRIVER_OK(cuStreamDestroy(stream));
        }
        DRIVER_OK(cuMemcpyDtoH(words, waiting.local_words(), sizeof words));
        check(words[0] == 7 && words[1] == 8, "the kernels with local memory wrote %u, %u", words[0], words[1]);
        DRIVER_OK(cuMemsetD32(waiting.local_words(), 0, 2));
    });
}

void local_memory_in_graphs(Waiting& waiting) {
    CUdeviceptr words = waiting.local_words();
    unsigned value = 9;
    void* parameters[] = {&words, &value};
    unsigned next = 0;
    waiting.run("a graph with more local memory", [&] {
        const CUfunction function = waiting.module().function(next++ == 0 ? "use_local_24k" : "use_local_32k");
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        CUstream stream = nullptr;
        DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuGraphCreate(&graph, 0));
        add_kernel(graph, nullptr, function, parameters);
        DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
        DRIVER_OK(cuGraphLaunch(executable, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuGraphExecDestroy(executable));
        DRIVER_OK(cuGraphDestroy(graph));
        DRIVER_OK(cuStreamDestroy(stream));
    });
}

// The same for graphs that are changed.
void local_memory_in_changes(Waiting& waiting) {
    CUdeviceptr words = waiting.local_words();
    unsigned value = 11;
    void* parameters[] = {&words, &value};
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuGraphCreate(&graph, 0));
    const CUgraphNode node = add_kernel(graph, nullptr, waiting.module().function("use_local_4k"), parameters);
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    unsigned next = 0;
    waiting.run("a node changed to more local memory", [&] {
        CUDA_KERNEL_NODE_PARAMS kernel =
            one_thread(waiting.module().function(next++ == 0 ? "use_local_40k" : "use_local_48k"), parameters);
        DRIVER_OK(cuGraphExecKernelNodeSetParams(executable, node, &kernel));
        DRIVER_OK(cuGraphLaunch(executable, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
    });
    next = 0;
    waiting.run("a graph updated to more local memory", [&] {
        CUgraph other = nullptr;
        CUgraphExecUpdateResultInfo information{};
        DRIVER_OK(cuGraphCreate(&other, 0));
        add_kernel(other, nullptr, waiting.module().function(next++ == 0 ? "use_local_56k" : "use_local_64k"),
                   parameters);
        DRIVER_OK(cuGraphExecUpdate(executable, other, &information));
        DRIVER_OK(cuGraphLaunch(executable, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuGraphDestroy(other));
    });
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, words, sizeof word));
    check(word == value, "the changed graph's kernel wrote %u", word);
    DRIVER_OK(cuMemsetD32(words, 0, 1));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

// A graph with so many nodes that the driver accepts it only as the GPU makes progress, behind a host function or with
// one in it.
void large_graphs(Waiting& waiting) {
    constexpr unsigned kNodes = 6000;
    CUdeviceptr words = waiting.local_words();
    unsigned count = 1, value = 1;
    void* parameters[] = {&words, &count, &value};
    CUgraph graph = nullptr, with_function = nullptr;
    CUgraphExec executable = nullptr, executable_with_function = nullptr;
    for (CUgraph* made : {&graph, &with_function}) {
        DRIVER_OK(cuGraphCreate(made, 0));
        CUgraphNode last = nullptr;
        if (made == &with_function) {
            CUDA_HOST_NODE_PARAMS host{Function::run, &waiting.function()};
            DRIVER_OK(cuGraphAddHostNode(&last, *made, nullptr, 0, &host));
        }
        for (unsigned i = 0; i < kNodes; i++) {
            last = add_kernel(*made, last == nullptr ? nullptr : &last, waiting.add(), parameters);
        }
    }
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphInstantiate(&executable_with_function, with_function, 0));
    DRIVER_OK(cuMemsetD32(words, 0, 1));
    waiting.run("a large graph behind it", [&] { DRIVER_OK(cuGraphLaunch(executable, waiting.busy())); });
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    waiting.beside(
        "a large graph", "its own host node", [] { return CUDA_SUCCESS; },
        [&] { DRIVER_OK(cuGraphLaunch(executable_with_function, stream)); });
    unsigned added = 0;
    DRIVER_OK(cuMemcpyDtoH(&added, words, sizeof added));
    check(added == 3 * kNodes, "%u nodes of %u ran", added, 3 * kNodes);
    DRIVER_OK(cuMemsetD32(words, 0, 1));
    DRIVER_OK(cuStreamDestroy(stream));
    for (const CUgraphExec made : {executable, executable_with_function}) {
        DRIVER_OK(cuGraphExecDestroy(made));
    }
    for (const CUgraph made : {graph, with_function}) {
        DRIVER_OK(cuGraphDestroy(made));
    }
}

}  // namespace

int main(int argc, char** argv) {
    Program program("waiting_calls", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    Waiting waiting(device, module, milliseconds(program.number("function_ms", 200)));
    program.section("load_and_unload", [&] { load_and_unload(waiting); });
    program.section("questions", [&] { questions(waiting); });
    program.section("flood", [&] { flood(waiting); });
    program.section("libraries", [&] { libraries(waiting); });
    program.section("lookups", [&] { lookups(waiting); });
    program.section("captured", [&] { captured(waiting); });
    program.section("memory", [&] { memory(waiting); });
    program.section("limits", [&] { limits(waiting); });
    program.section("local_memory", [&] { local_memory(waiting); });
    program.section("local_memory_in_graphs", [&] { local_memory_in_graphs(waiting); });
    program.section("local_memory_in_changes", [&] { local_memory_in_changes(waiting); });
    program.section("large_graphs", [&] { large_graphs(waiting); });
    return program.finish();
}
