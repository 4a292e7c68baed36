#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "tests/gpu/images.h"
#include "tests/gpu/modules.h"

namespace gpupool::programs {

namespace {

int attribute_of(CUfunction function, CUfunction_attribute attribute) {
    int value = -1;
    DRIVER_OK(cuFuncGetAttribute(&value, attribute, function));
    return value;
}

// The parameters of `many_parameters` in C++ layout.
constexpr size_t kExpectedLayout[][2] = {{0, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 4}, {24, 8}, {32, 24}, {56, 8}};

bool computes_shared_sum(CUfunction function, unsigned threads, unsigned shared_bytes) {
    CUdeviceptr in = 0, out = 0;
    std::vector<unsigned> values(threads);
    unsigned expected = 0, seen = 0;
    for (unsigned i = 0; i < threads; i++) {
        values[i] = i * i;
        expected += values[i];
    }
    DRIVER_OK(cuMemAlloc(&in, threads * sizeof(unsigned)));
    DRIVER_OK(cuMemAlloc(&out, sizeof(unsigned)));
    DRIVER_OK(cuMemcpyHtoD(in, values.data(), threads * sizeof(unsigned)));
    void* parameters[] = {&in, &out};
    DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, shared_bytes, nullptr, parameters, nullptr));
    DRIVER_OK(cuMemcpyDtoH(&seen, out, sizeof seen));
    DRIVER_OK(cuMemFree(in));
    DRIVER_OK(cuMemFree(out));
    return seen == expected;
}

}  // namespace

void function_attributes() {
    const Module module(kernels_ptx().data);
    const CUfunction bounded = module.function("bounded"), add = module.function("add_value");
    check(attribute_of(bounded, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) == 64, "launch bounds limit the block");
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) >= 512, "without them it is the device's limit");
    check(attribute_of(bounded, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) == 128, "static shared memory");
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) == 0, "and none where there is none");
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_NUM_REGS) > 0, "registers: %d",
          attribute_of(add, CU_FUNC_ATTRIBUTE_NUM_REGS));
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_PTX_VERSION) == 75, "virtual architecture: %d",
          attribute_of(add, CU_FUNC_ATTRIBUTE_PTX_VERSION));
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES) >= 0 &&
              attribute_of(add, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) == 0,
          "constant and local memory");
    DRIVER_OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    check(attribute_of(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) == 1024, "an attribute as it was set");
    DRIVER_OK(cuFuncSetCacheConfig(add, CU_FUNC_CACHE_PREFER_SHARED));
    const char* name = nullptr;
    DRIVER_OK(cuFuncGetName(&name, add));
    check(name != nullptr && strcmp(name, "add_value") == 0, "a function's name");
    CUmodule owner = nullptr;
    DRIVER_OK(cuFuncGetModule(&owner, add));
    check(owner == module.get(), "a function's module");
}

void parameter_layout() {
    const Module module(kernels_ptx().data);
    const CUfunction function = module.function("many_parameters");
    int wrong = 0;
    for (size_t i = 0; i < std::size(kExpectedLayout); i++) {
        size_t offset = 0, bytes = 0;
        DRIVER_OK(cuFuncGetParamInfo(function, i, &offset, &bytes));
        wrong += offset != kExpectedLayout[i][0] || bytes != kExpectedLayout[i][1];
    }
    check(wrong == 0, "offsets and sizes of 8 parameters: %d wrong", wrong);
    size_t offset = 0, bytes = 0;
    check_result(cuFuncGetParamInfo(function, std::size(kExpectedLayout), &offset, &bytes), CUDA_ERROR_INVALID_VALUE,
                 "a ninth parameter");

    // The same kernel, with its parameters in one buffer.
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, sizeof(double)));
    char buffer[64] = {};
    size_t buffer_bytes = sizeof buffer;
    const auto put = [&](size_t index, auto value) {
        memcpy(buffer + kExpectedLayout[index][0], &value, sizeof value);
    };
    put(0, char{5});
    put(1, short{50});
    put(2, 500);
    put(3, 5000LL);
    put(4, 0.5f);
    put(5, 0.25);
    put(7, out);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &buffer_bytes,
                     CU_LAUNCH_PARAM_END};
    DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
    double seen = 0;
    DRIVER_OK(cuMemcpyDtoH(&seen, out, sizeof seen));
    check(seen == 5555.75, "parameters as one buffer (%.3f)", seen);
    DRIVER_OK(cuMemFree(out));
}

void occupancy(const Device& device) {
    const Module module(kernels_ptx().data);
    const CUfunction add = module.function("add_value"), shared = module.function("shared_sum");
    int blocks = 0, with_memory = 0, grid = 0, block = 0;
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
    const int threads = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    check(blocks >= 1 && blocks * 128 <= threads, "%d blocks of 128 threads on each multiprocessor", blocks);
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&with_memory, shared, 128, 32 << 10));
    check(with_memory >= 1 && with_memory <= blocks, "%d with 32 KiB of shared memory each", with_memory);
    DRIVER_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, nullptr, 0, 0));
    check(grid >= 1 && block >= 32 && block <= 1024, "the best block for the device: %d, grid %d", block, grid);
    size_t bytes = 0;
    DRIVER_OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, shared, 1, 128));
    check(bytes > 0, "%zu bytes of shared memory for a single block", bytes);

    // The blocks of a cooperative launch must all be resident at once; the call itself fails when they cannot.
    const auto at_once = static_cast<unsigned>(blocks * device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    CUdeviceptr data = 0;
    DRIVER_OK(cuMemAlloc(&data, 128 * sizeof(unsigned)));
    unsigned words = 128, value = 1;
    void* parameters[] = {&data, &words, &value};
    const auto cooperative = [&](unsigned count) {
        return cuLaunchCooperativeKernel(add, count, 1, 1, 128, 1, 1, 0, nullptr, parameters);
    };
    check_result(cooperative(at_once), CUDA_SUCCESS, "a cooperative launch of as many blocks as fit");
    check_result(cooperative(at_once + 1), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "of one block more");
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    const CUlaunchConfig config{at_once + 1, 1, 1, 128, 1, 1, 0, nullptr, &attribute, 1};
    check_result(cuLaunchKernelEx(&config, add, parameters, nullptr), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                 "of one block more, asked for by an attribute");
    check_result(cuCtxSynchronize(), CUDA_SUCCESS, "those that were refused left nothing behind");
    DRIVER_OK(cuMemFree(data));
}

void large_shared_memory(const Device& device) {
    const Module module(kernels_ptx().data);
    const CUfunction sum = module.function("shared_sum");
    check(computes_shared_sum(sum, 256, 1024), "dynamic shared memory");
    const int most = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    const int ordinary = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    if (most > ordinary) {
        DRIVER_OK(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
        check(computes_shared_sum(sum, 256, static_cast<unsigned>(most)), "%d bytes of it, by request", most);
    }
}

namespace {

// Work that cannot begin before destruction, and more of it than the server issues at once.
class Backlog {
  public:
    explicit Backlog(CUfunction store) {
        constexpr unsigned kMany = 700;  // the driver's limit is about 1,000
        DRIVER_OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuMemAlloc(&word_, sizeof(unsigned)));
        DRIVER_OK(cuLaunchHostFunc(
            stream_, [](void* go) { static_cast<std::atomic<bool>*>(go)->wait(false); }, &go_));
        for (unsigned i = 0; i < kMany; i++) {
            DRIVER_OK(launch(store, 1, 1, stream_, word_, i));
        }
    }
    ~Backlog() {
        release();
        cuStreamDestroy(stream_);
        cuMemFree(word_);
    }
    Backlog(const Backlog&) = delete;
    Backlog& operator=(const Backlog&) = delete;

    CUstream stream() const { return stream_; }
    void release() {
        go_ = true;
        go_.notify_all();
        check_result(cuStreamSynchronize(stream_), CUDA_SUCCESS, "all that was launched ran");
    }

  private:
    std::atomic<bool> go_{false};
    CUstream stream_ = nullptr;
    CUdeviceptr word_ = 0;
};

}  // namespace

void attributes_in_order() {
    const Module module(kernels_ptx().data);
    const CUfunction sum = module.function("shared_sum"), store = module.function("store_word");
    CUstream other = nullptr;
    CUdeviceptr in = 0, out = 0;
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&in, sizeof(unsigned)));
    DRIVER_OK(cuMemAlloc(&out, 4 * sizeof(unsigned)));
    DRIVER_OK(cuMemsetD32(in, 7, 1));
    DRIVER_OK(cuMemsetD32(out, 0, 4));
    DRIVER_OK(cuCtxSynchronize());
    int sums = 0;
    const auto launch_with = [&](int shared_bytes, CUstream stream) {
        DRIVER_OK(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes));
        CUdeviceptr to = out + sizeof(unsigned) * static_cast<unsigned>(sums++);
        void* parameters[] = {&in, &to};
        DRIVER_OK(
            cuLaunchKernel(sum, 1, 1, 1, 1, 1, 1, static_cast<unsigned>(shared_bytes), stream, parameters, nullptr));
    };
    {
        Backlog backlog(store);
        launch_with(60'000, backlog.stream());
        launch_with(1'000, backlog.stream());
        launch_with(2'000, other);
        launch_with(50'000, backlog.stream());
    }
    check_result(cuStreamSynchronize(other), CUDA_SUCCESS, "nor did one of another stream come too early");
    unsigned seen[4] = {};
    DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
    check(std::count(std::begin(seen), std::end(seen), 7u) == 4,
          "each launch found its function's shared memory as it was set before: %u %u %u %u", seen[0], seen[1], seen[2],
          seen[3]);
    DRIVER_OK(cuMemFree(out));
    DRIVER_OK(cuMemFree(in));
    DRIVER_OK(cuStreamDestroy(other));
}

// Calls that do not block natively must not block behind a stuck stream, which may be waiting for the caller.
void attributes_beside_a_stuck_stream() {
    const Module module(kernels_ptx().data);
    const CUfunction sum = module.function("shared_sum"), store = module.function("store_word"),
                     add = module.function("add_value");
    CUstream other = nullptr;
    CUdeviceptr in = 0, out = 0;
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&in, sizeof(unsigned)));
    DRIVER_OK(cuMemAlloc(&out, 3 * sizeof(unsigned)));
    DRIVER_OK(cuMemsetD32(in, 7, 1));
    DRIVER_OK(cuMemsetD32(out, 0, 3));
    const auto set_shared = [&](int bytes) {
        DRIVER_OK(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
    };
    const auto launch_with = [&](unsigned shared_bytes, CUstream stream, unsigned place) {
        CUdeviceptr to = out + sizeof(unsigned) * place;
        void* parameters[] = {&in, &to};
        DRIVER_OK(cuLaunchKernel(sum, 1, 1, 1, 1, 1, 1, shared_bytes, stream, parameters, nullptr));
    };
    set_shared(50'000);
    launch_with(1'000, other, 0);  // the first launch of a function may wait
    DRIVER_OK(cuCtxSynchronize());
    size_t heap_bytes = 0;
    DRIVER_OK(cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE));
    CUgraph graph = nullptr;
    {
        Backlog backlog(store);
        launch_with(50'000, backlog.stream(), 0);
        set_shared(1'000);
        set_shared(60'000);
        DRIVER_OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        launch_with(60'000, other, 1);
        check_result(cuStreamEndCapture(other, &graph), CUDA_SUCCESS,
                     "a limit that was raised again holds for captures");
        set_shared(2'000);
        launch_with(2'000, other, 2);
        check_result(cuStreamSynchronize(other), CUDA_SUCCESS,
                     "another stream goes on behind a limit that was lowered");
        // for functions that have the attribute
        (void)cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
        (void)cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_bytes);
        int bytes = 0;
        DRIVER_OK(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, sum));
        check(bytes == 2'000, "the limit is the value set last: %d", bytes);
    }
    set_shared(60'000);
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, other));
    DRIVER_OK(cuStreamSynchronize(other));
    unsigned seen[3] = {};
    DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
    check(seen[0] == 7 && seen[1] == 7 && seen[2] == 7, "and all of them ran: %u %u %u", seen[0], seen[1], seen[2]);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(out));
    DRIVER_OK(cuMemFree(in));
    DRIVER_OK(cuStreamDestroy(other));
}

// A driver need not support destroying objects that work still uses, but work queued by the worker must behave no
// worse.
void textures_in_order() {
    const Module module(kernels_ptx().data);
    const CUfunction read = module.function("read_texture"), store = module.function("store_word");
    CUdeviceptr words = 0, out = 0;
    DRIVER_OK(cuMemAlloc(&words, 4096));
    DRIVER_OK(cuMemAlloc(&out, sizeof(unsigned)));
    DRIVER_OK(cuMemsetD32(words, 42, 1024));
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear.devPtr = words;
    resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = 4096;
    CUDA_TEXTURE_DESC description{};
    description.flags = CU_TRSF_READ_AS_INTEGER;
    CUtexObject texture = 0;
    DRIVER_OK(cuTexObjectCreate(&texture, &resource, &description, nullptr));
    {
        Backlog backlog(store);
        DRIVER_OK(launch(read, 1, 1, backlog.stream(), out, texture));
        DRIVER_OK(cuTexObjectDestroy(texture));
    }
    unsigned seen = 0;
    DRIVER_OK(cuMemcpyDtoH(&seen, out, sizeof seen));
    check(seen == 42, "a destroyed texture stays valid for earlier launches: %u", seen);
    DRIVER_OK(cuMemFree(out));
    DRIVER_OK(cuMemFree(words));
}

void libraries() {
    CUlibrary library = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_fatbin().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "add_value"));
    CUfunction function = nullptr;
    DRIVER_OK(cuKernelGetFunction(&function, kernel));
    CUdeviceptr data = 0;
    DRIVER_OK(cuMemAlloc(&data, 128));
    DRIVER_OK(cuMemsetD32(data, 1, 32));
    DRIVER_OK(launch(function, 1, 32, nullptr, data, 32u, 10u));
    DRIVER_OK(launch(reinterpret_cast<CUfunction>(kernel), 1, 32, nullptr, data, 32u, 100u));
    unsigned seen = 0;
    DRIVER_OK(cuMemcpyDtoH(&seen, data + 124, sizeof seen));
    check(seen == 111, "a kernel launched as a function and as itself (%u)", seen);
    DRIVER_OK(cuMemFree(data));

    const char* name = nullptr;
    DRIVER_OK(cuKernelGetName(&name, kernel));
    check(name != nullptr && strcmp(name, "add_value") == 0, "a kernel's name");
    CUlibrary owner = nullptr;
    DRIVER_OK(cuKernelGetLibrary(&owner, kernel));
    check(owner == library, "a kernel's library");
    size_t offset = 0, bytes = 0;
    DRIVER_OK(cuKernelGetParamInfo(kernel, 2, &offset, &bytes));
    check(offset == 12 && bytes == 4, "a kernel's third parameter: offset %zu, %zu bytes", offset, bytes);
    int threads = 0;
    DRIVER_OK(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
    check(threads >= 512, "a kernel's attribute");
    CUdeviceptr global = 0;
    DRIVER_OK(cuLibraryGetGlobal(&global, &bytes, library, "device_counter"));
    check(global != 0 && bytes == 4, "a library's global");
    CUmodule module = nullptr;
    DRIVER_OK(cuLibraryGetModule(&module, library));
    DRIVER_OK(cuModuleGetFunction(&function, module, "store_word"));
    DRIVER_OK(cuLibraryUnload(library));
}

void enumeration() {
    static const char* const names[] = {
        "spin",          "append_ticket", "answer_word",   "write_odd_bytes", "store_word",    "add_value",
        "copy_words",    "use_globals",   "shared_sum",    "many_parameters", "bounded",       "use_local_4k",
        "use_local_16k", "use_local_24k", "use_local_32k", "use_local_40k",   "use_local_48k", "use_local_56k",
        "use_local_64k", "read_texture",  "read_texels",   "read_level",      "add_to_surface"};
    CUlibrary library = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    unsigned count = 0;
    DRIVER_OK(cuLibraryGetKernelCount(&count, library));
    check(count == std::size(names), "a library of %u kernels", count);
    std::vector<CUkernel> kernels(count);
    DRIVER_OK(cuLibraryEnumerateKernels(kernels.data(), count, library));
    std::set<std::string> seen;
    for (const CUkernel kernel : kernels) {
        const char* name = nullptr;
        DRIVER_OK(cuKernelGetName(&name, kernel));
        seen.insert(name);
    }
    check(seen == std::set<std::string>(std::begin(names), std::end(names)), "their names, enumerated");
    DRIVER_OK(cuLibraryUnload(library));

    const Module module(kernels_ptx().data);
    DRIVER_OK(cuModuleGetFunctionCount(&count, module.get()));
    std::vector<CUfunction> functions(count);
    DRIVER_OK(cuModuleEnumerateFunctions(functions.data(), count, module.get()));
    seen.clear();
    for (const CUfunction function : functions) {
        const char* name = nullptr;
        DRIVER_OK(cuFuncGetName(&name, function));
        seen.insert(name);
    }
    check(seen.size() == std::size(names) && count == std::size(names), "a module's functions, enumerated");
}

void link_two_units() {
    CUlinkState state = nullptr;
    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &state));
    const auto add = [&](const Image& image, const char* name) {
        // PTX is text: its size includes the terminating zero.
        return cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<void*>(image.data), image.bytes + 1, name, 0, nullptr,
                             nullptr);
    };
    DRIVER_OK(add(link_caller_ptx(), "caller"));
    DRIVER_OK(add(link_callee_ptx(), "callee"));
    void* image = nullptr;
    size_t bytes = 0;
    DRIVER_OK(cuLinkComplete(state, &image, &bytes));
    check(image != nullptr && bytes > 0, "two units linked into an image of %zu bytes", bytes);
    {
        const Module module(image);
        CUdeviceptr out = 0;
        unsigned seen[8] = {};
        DRIVER_OK(cuMemAlloc(&out, sizeof seen));
        DRIVER_OK(launch(module.function("call_linked"), 1, 8, nullptr, out));
        DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
        check(seen[0] == 1 && seen[7] == 50, "which calls from one into the other");
        DRIVER_OK(cuMemFree(out));
    }
    DRIVER_OK(cuLinkDestroy(state));

    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &state));
    DRIVER_OK(add(link_caller_ptx(), "caller"));
    check(cuLinkComplete(state, &image, &bytes) != CUDA_SUCCESS, "a unit that lacks the other is refused");
    DRIVER_OK(cuLinkDestroy(state));
}

}  // namespace gpupool::programs
