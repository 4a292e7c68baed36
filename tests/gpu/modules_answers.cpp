// Answers at the edges of modules, functions, the occupancy calculator and the linker, as driver 580 gives them on an
// H200.
#include <chrono>
#include <string>

#include "tests/gpu/images.h"
#include "tests/gpu/modules.h"

namespace gpupool::programs {
namespace {

constexpr char kHeader[] = ".version 7.0\n.target sm_50\n.address_size 64\n";

// A caller of `add1`, whose parameter and result are unsigned words.
constexpr char kCaller[] =
    ".extern .func (.param .u32 r) add1(.param .u32 a);\n"
    ".visible .entry k(.param .u64 p) { .reg .u64 %a; .reg .u32 %v; ld.param.u64 %a, [p]; { .param .u32 i; .param .u32 "
    "o;"
    " st.param.u32 [i], 4; call (o), add1, (i); ld.param.u32 %v, [o]; } st.global.u32 [%a], %v; ret; }\n";

// What the linker returns for units that do not fit; the second once a compilation has failed in the process.
bool refused(CUresult result) {
    return result == CUDA_ERROR_INVALID_SOURCE || result == CUDA_ERROR_UNKNOWN;
}

// Links the caller with a unit that defines `add1`, or does not. Returns the results of adding it and of completing.
std::pair<CUresult, CUresult> link_with(const std::string& callee, std::string& log) {
    char errors[2048] = "";
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {errors, reinterpret_cast<void*>(sizeof errors)};
    CUlinkState state = nullptr;
    DRIVER_OK(cuLinkCreate(2, names, values, &state));
    std::string first = std::string(kHeader) + kCaller, second = kHeader + callee;
    DRIVER_OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, first.data(), first.size() + 1, "a", 0, nullptr, nullptr));
    const CUresult added =
        cuLinkAddData(state, CU_JIT_INPUT_PTX, second.data(), second.size() + 1, "b", 0, nullptr, nullptr);
    void* image = nullptr;
    size_t bytes = 0;
    const CUresult completed = cuLinkComplete(state, &image, &bytes);
    DRIVER_OK(cuLinkDestroy(state));
    log = errors;
    return {added, completed};
}

// A kernel `k` that holds 240 values at once.
std::string of_many_registers(const char* directives) {
    std::string code = std::string(kHeader) + ".visible .entry k(.param .u64 p) " + directives +
                       " { .reg .u64 %a; .reg .f32 %v<240>; ld.param.u64 %a, [p];\n";
    for (int i = 0; i < 240; ++i) {
        code += "ld.volatile.global.f32 %v" + std::to_string(i) + ", [%a+" + std::to_string(4 * i) + "];\n";
    }
    for (int i = 0; i < 240; ++i) {
        code += "st.volatile.global.f32 [%a+" + std::to_string(4 * (239 - i)) + "], %v" + std::to_string(i) + ";\n";
    }
    return code + "ret; }\n";
}

// CU_JIT_MAX_REGISTERS, as an option if it is not 0.
struct RegisterLimit {
    explicit RegisterLimit(unsigned limit)
        : count(limit == 0 ? 0 : 1), value(reinterpret_cast<void*>(static_cast<uintptr_t>(limit))) {}
    unsigned count;
    CUjit_option name = CU_JIT_MAX_REGISTERS;
    void* value;
};

// The number of registers of the image's kernel `k`, loaded with a limit.
int registers_of(const void* image, unsigned max_registers) {
    RegisterLimit limit(max_registers);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    int registers = 0;
    DRIVER_OK(cuModuleLoadDataEx(&module, image, limit.count, &limit.name, &limit.value));
    DRIVER_OK(cuModuleGetFunction(&function, module, "k"));
    DRIVER_OK(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
    DRIVER_OK(cuModuleUnload(module));
    return registers;
}

// Links the code with limits for all units and for this one, and loads it with a further one.
int registers_if_linked(std::string code, unsigned of_state, unsigned of_unit, unsigned of_load) {
    RegisterLimit state_limit(of_state), unit_limit(of_unit);
    CUlinkState state = nullptr;
    void* image = nullptr;
    DRIVER_OK(cuLinkCreate(state_limit.count, &state_limit.name, &state_limit.value, &state));
    DRIVER_OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, code.data(), code.size() + 1, "k", unit_limit.count,
                            &unit_limit.name, &unit_limit.value));
    DRIVER_OK(cuLinkComplete(state, &image, nullptr));
    const int registers = registers_of(image, of_load);
    DRIVER_OK(cuLinkDestroy(state));
    return registers;
}

void check_registers(const char* what, int registers, int least, int most) {
    check(registers >= least && registers <= most, "%s: %d registers, %d to %d expected", what, registers, least, most);
}

double unload_ms(CUlibrary library) {
    const auto begin = std::chrono::steady_clock::now();
    DRIVER_OK(cuLibraryUnload(library));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void null_handles() {
    const Module module(kernels_ptx().data);
    const char* name = nullptr;
    size_t offset = 0, bytes = 0;
    CUmodule owner = nullptr;
    CUlibrary library = nullptr;
    int value = 0;
    check_result(cuFuncGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE, "the name of no function");
    check_result(cuKernelGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE, "the name of no kernel");
    check_result(cuFuncGetModule(&owner, nullptr), CUDA_ERROR_INVALID_VALUE, "the module of no function");
    check_result(cuFuncGetParamInfo(nullptr, 0, &offset, &bytes), CUDA_ERROR_INVALID_VALUE,
                 "parameters of no function");
    check_result(cuKernelGetParamInfo(nullptr, 0, &offset, &bytes), CUDA_ERROR_INVALID_VALUE,
                 "parameters of no kernel");
    check_result(cuKernelGetLibrary(&library, nullptr), CUDA_ERROR_INVALID_HANDLE, "the library of no kernel");
    check_result(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr), CUDA_ERROR_INVALID_HANDLE,
                 "an attribute of no function");
    check_result(cuModuleGetGlobal(nullptr, nullptr, module.get(), "device_counter"), CUDA_ERROR_INVALID_VALUE,
                 "a global of which nothing is asked");
    CUfunction function = nullptr;
    check_result(cuModuleGetFunction(&function, module.get(), ""), CUDA_ERROR_INVALID_VALUE,
                 "a function without a name");
    check_result(cuModuleEnumerateFunctions(nullptr, 0, module.get()), CUDA_ERROR_INVALID_VALUE,
                 "functions to nowhere");
}

// A kernel's parameters are known only once it is loaded into a context.
void without_a_context(const Device& device) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    const Module module(kernels_ptx().data);
    CUfunction const function = module.function("store_word");
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxPopCurrent(&context));
    size_t offset = 0, bytes = 0;
    const char* name = nullptr;
    check_result(cuKernelGetParamInfo(kernel, 0, &offset, &bytes), CUDA_ERROR_INVALID_CONTEXT,
                 "a kernel's parameters without a context");
    check_result(cuKernelGetName(&name, kernel), CUDA_SUCCESS, "its name without a context");
    check_result(cuFuncGetParamInfo(function, 0, &offset, &bytes), CUDA_SUCCESS,
                 "a function's parameters without a context");
    device.use();
    check_result(cuKernelGetParamInfo(kernel, 0, &offset, &bytes), CUDA_SUCCESS, "a kernel's parameters in a context");
    DRIVER_OK(cuLibraryUnload(library));
}

void constants_and_registers() {
    const std::string text = std::string(kHeader) +
                             ".const .align 1 .b8 first[3];\n.const .align 8 .b8 second[8];\n"
                             ".visible .entry k(.param .u64 p) { ret; }\n";
    {
        const Module module(text.c_str());
        int bytes = 0;
        DRIVER_OK(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, module.function("k")));
        check(bytes == 16, "constants of 3 and 8 bytes take %d", bytes);
    }
    struct Case {
        const char* what;
        const char* directives;
        unsigned limit;  // 0: none
        int least, most;
    };
    for (const Case& one : {
             Case{"no limit", "", 0, 65, 255},
             Case{"at most 38", "", 38, 16, 38},
             Case{"at most 64", "", 64, 39, 64},
             Case{".maxnreg 64", ".maxnreg 64", 0, 39, 64},
             Case{".maxnreg 64, which counts, and at most 38", ".maxnreg 64", 38, 39, 64},
             Case{"a block of 1024 threads must fit, which counts, and at most 38", ".maxntid 1024, 1, 1", 38, 39, 64},
             Case{"four blocks of 256 threads must fit", ".maxntid 256, 1, 1 .minnctapersm 4", 0, 39, 64},
         }) {
        const std::string code = of_many_registers(one.directives);
        check_registers(one.what, registers_of(code.c_str(), one.limit), one.least, one.most);
    }
    const std::string code = of_many_registers("");
    check_registers("linked without a limit", registers_if_linked(code, 0, 0, 0), 65, 255);
    check_registers("linked with at most 38", registers_if_linked(code, 38, 0, 0), 16, 38);
    check_registers("linked with at most 38 for the unit", registers_if_linked(code, 0, 38, 0), 16, 38);
    check_registers("linked with at most 64 for the unit, 38 for others", registers_if_linked(code, 38, 64, 0), 39, 64);
    check_registers("linked, then loaded with at most 38", registers_if_linked(code, 0, 0, 38), 65, 255);
    check_registers("linked with at most 38, with .maxnreg 64, which counts",
                    registers_if_linked(of_many_registers(".maxnreg 64"), 38, 0, 0), 39, 64);

    CUjit_option names[] = {CU_JIT_MAX_REGISTERS};
    void* values[] = {nullptr};
    CUmodule module = nullptr;
    check_result(cuModuleLoadDataEx(&module, code.c_str(), 1, names, values), CUDA_ERROR_INVALID_VALUE,
                 "at most no registers");
}

void occupancy_limits() {
    const Module module(kernels_ptx().data);
    const CUfunction function = module.function("shared_sum");
    const auto available = [&](int blocks, int threads) {
        size_t bytes = 0;
        DRIVER_OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, blocks, threads));
        return bytes;
    };
    int own = 0, blocks = -1, grid = -1, block = -1;
    DRIVER_OK(cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    const auto least = static_cast<size_t>(49152 - own);
    check(available(1, 32) == least && available(4, 32) == least, "48 KiB and no more without a higher limit: %zu",
          available(1, 32));
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 49153));
    check(blocks == 0, "a block with more than its limit does not fit (%d)", blocks);
    DRIVER_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
    check(available(1, 32) == 65536, "as much as a higher limit permits: %zu", available(1, 32));
    size_t bytes = 0;
    check_result(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 33, 32), CUDA_ERROR_INVALID_VALUE,
                 "more blocks than a multiprocessor takes");
    check_result(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 1, 1025), CUDA_ERROR_INVALID_VALUE,
                 "more threads than a block has");
    check_result(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 4, 1024), CUDA_ERROR_INVALID_VALUE,
                 "more threads than a multiprocessor takes");
    DRIVER_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 1000000, 0));
    check(grid == 0 && block == 0, "no block has a million bytes of shared memory");
    check_result(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 64, 0, 2),
                 CUDA_ERROR_INVALID_VALUE, "an unknown flag");
}

void links_that_do_not_fit() {
    const struct {
        const char* what;
        const char* callee;
        bool added;
        bool completed;
    } cases[] = {
        {"signed for unsigned",
         ".visible .func (.param .s32 r) add1(.param .s32 a) { .reg .u32 %v; ld.param.u32 %v, [a]; st.param.u32 [r], "
         "%v;"
         " ret; }",
         true, true},
        // numba-cuda declares functions of C without a result so.
        {"no result", ".visible .func add1(.param .u32 a) { ret; }", false, false},
        {"a wider result",
         ".visible .func (.param .u64 r) add1(.param .u32 a) { .reg .u64 %w; mov.u64 %w, 1; st.param.u64 [r], %w; ret; "
         "}",
         false, false},
        {"floating point for integers",
         ".visible .func (.param .f32 r) add1(.param .f32 a) { .reg .f32 %v; ld.param.f32 %v, [a]; st.param.f32 [r], "
         "%v;"
         " ret; }",
         false, false},
        {"a parameter more",
         ".visible .func (.param .u32 r) add1(.param .u32 a, .param .u32 b) { .reg .u32 %v; ld.param.u32 %v, [a];"
         " st.param.u32 [r], %v; ret; }",
         false, false},
        {"another function", ".visible .func other() { ret; }", true, false},
    };
    for (const auto& one : cases) {
        std::string log;
        const auto [added, completed] = link_with(one.callee, log);
        const bool as_expected = (one.added ? added == CUDA_SUCCESS : refused(added)) &&
                                 (one.completed ? completed == CUDA_SUCCESS : refused(completed));
        check(as_expected, "linking %s: %s, %s", one.what, result_name(added).c_str(), result_name(completed).c_str());
        check((completed == CUDA_SUCCESS) == log.empty(), "its log: %.80s", log.c_str());
    }
}

// Unloading a library waits for the GPU if a context has loaded it.
void unload_waits() {
    const Module module(kernels_ptx().data);
    for (const bool is_loaded : {false, true}) {
        CUdeviceptr words = 0;
        CUstream stream = nullptr;
        CUlibrary library = nullptr;
        CUkernel kernel = nullptr;
        CUfunction function = nullptr;
        DRIVER_OK(cuMemAlloc(&words, 8));
        DRIVER_OK(cuMemsetD32(words, 0, 2));
        DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(launch(module.function("spin"), 1, 1, stream, words, words + 4, 1u));  // loads it
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
        DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
        if (is_loaded) {
            DRIVER_OK(cuKernelGetFunction(&function, kernel));
        }
        DRIVER_OK(launch(module.function("spin"), 1, 1, stream, words, words + 4, kSpinLimit / 64));
        const double ms = unload_ms(library);
        const CUresult after = cuStreamQuery(stream);
        if (is_loaded) {
            check(after == CUDA_SUCCESS, "the unload of a loaded library waits for the GPU (%.1f ms)", ms);
        } else {
            note("the unload of one that was never loaded took %.1f ms", ms);
        }
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuStreamDestroy(stream));
        DRIVER_OK(cuMemFree(words));
    }
}

}  // namespace gpupool::programs
