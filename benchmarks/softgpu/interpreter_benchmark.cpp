// How many PTX instructions per second the interpreter executes on one core. Each thread's instruction counts as one,
// as PTX defines it. One block runs on one core, so a kernel of one block measures one core.
//
// Argument: threads of the block. 1 is the worst case, one lane of a warp; from 32 on warps are full.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#define CALL(name) (reinterpret_cast<decltype(&name)>(gpupool::benchmarks::entry_point(#name)))

namespace gpupool::benchmarks {
namespace {

void* entry_point(const char* name) {
    static void* const library = dlopen(GPUPOOL_SOFTGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void* found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) {
        std::fprintf(stderr, "no %s: %s\n", name, dlerror());
        std::exit(1);
    }
    return found;
}

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) {
        return;
    }
    std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(result));
    std::exit(1);
}

// Sixteen instructions of a kind and a loop's three around them, like unrolled code from nvcc.
struct Loop {
    const char* registers;
    const char* start;
    const char* body;
    const char* end;
    std::uint64_t body_instructions;
};

constexpr Loop kIntegerLoop{
    "", "mov.u32 %r1, 1; mov.u32 %r2, 77; mov.u32 %r3, 13; mov.u32 %r4, 99;",
    "add.s32 %r1, %r1, %r2; xor.b32 %r2, %r2, %r3; mad.lo.s32 %r3, %r1, 17, %r2; shl.b32 %r4, %r3, 3;"
    "sub.s32 %r1, %r4, %r1; and.b32 %r2, %r2, 65535; add.s32 %r2, %r2, %r4; shr.u32 %r5, %r1, 7;"
    "or.b32 %r3, %r3, %r5; mul.lo.s32 %r4, %r4, 3; add.s32 %r1, %r1, %r3; xor.b32 %r2, %r2, %r1;"
    "min.s32 %r5, %r1, %r2; add.s32 %r3, %r5, %r4; shl.b32 %r5, %r3, 1; sub.s32 %r4, %r5, %r2;",
    "st.global.u32 [%rd1], %r4;", 16};

constexpr Loop kFloatLoop{
    ".reg .f32 %f<6>;",
    "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F000000; mov.f32 %f3, 0f3E000000; mov.f32 %f4, 0f40000000;",
    "fma.rn.f32 %f1, %f1, %f2, %f3; add.f32 %f4, %f4, %f1; mul.f32 %f5, %f4, %f2; sub.f32 %f3, %f5, %f1;"
    "fma.rn.f32 %f2, %f3, %f2, %f2; max.f32 %f4, %f4, %f3; mul.f32 %f1, %f1, %f2; add.f32 %f3, %f3, %f4;"
    "fma.rn.f32 %f1, %f1, %f2, %f3; add.f32 %f4, %f4, %f1; mul.f32 %f5, %f4, %f2; sub.f32 %f3, %f5, %f1;"
    "fma.rn.f32 %f2, %f3, %f2, %f2; min.f32 %f4, %f4, %f3; mul.f32 %f1, %f1, %f2; add.f32 %f3, %f3, %f4;",
    "st.global.f32 [%rd1], %f3;", 16};

constexpr Loop kMemoryLoop{
    "", "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; mov.u32 %r2, 0;",
    "ld.global.u32 %r3, [%rd3]; add.s32 %r2, %r2, %r3; st.global.u32 [%rd3], %r2; ld.global.u32 %r4, [%rd3];", "", 4};

std::string text_of(const Loop& loop) {
    return std::string(
               ".version 7.0\n.target sm_70\n.address_size 64\n"
               ".visible .entry loop(.param .u64 out, .param .u32 count) {\n"
               ".reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;\n") +
           loop.registers + "\nld.param.u64 %rd1, [out]; ld.param.u32 %r7, [count]; mov.u32 %r6, 0;\n" + loop.start +
           "\nL:\n" + loop.body + "\nadd.s32 %r6, %r6, 1; setp.lt.s32 %p1, %r6, %r7; @%p1 bra L;\n" + loop.end +
           "\nret;\n}\n";
}

void run(benchmark::State& state, const Loop& loop) {
    const auto threads = static_cast<unsigned>(state.range(0));
    const unsigned rounds = 4'000'000 / (threads + 31) + 1000;
    check(CALL(cuInit)(0), "cuInit");
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUdeviceptr out = 0;
    check(CALL(cuCtxCreate_v2)(&context, 0, 0), "cuCtxCreate");
    check(CALL(cuModuleLoadData)(&module, text_of(loop).c_str()), "cuModuleLoadData");
    check(CALL(cuModuleGetFunction)(&function, module, "loop"), "cuModuleGetFunction");
    check(CALL(cuMemAlloc_v2)(&out, 4096), "cuMemAlloc");
    unsigned count = rounds;
    void* params[] = {&out, &count};
    for (auto _ : state) {
        check(CALL(cuLaunchKernel)(function, 1, 1, 1, threads, 1, 1, 0, nullptr, params, nullptr), "cuLaunchKernel");
        check(CALL(cuCtxSynchronize)(), "cuCtxSynchronize");
    }
    const auto instructions =
        static_cast<double>(state.iterations()) * rounds * threads * static_cast<double>(loop.body_instructions + 3);
    state.counters["PTX/s"] = benchmark::Counter(instructions, benchmark::Counter::kIsRate);
    check(CALL(cuCtxDestroy_v2)(context), "cuCtxDestroy");
}

void integer(benchmark::State& state) {
    run(state, kIntegerLoop);
}
void real(benchmark::State& state) {
    run(state, kFloatLoop);
}
void memory(benchmark::State& state) {
    run(state, kMemoryLoop);
}

BENCHMARK(integer)->Arg(1)->Arg(8)->Arg(32)->Arg(256)->UseRealTime();
BENCHMARK(real)->Arg(1)->Arg(32)->Arg(256)->UseRealTime();
BENCHMARK(memory)->Arg(1)->Arg(32)->Arg(256)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks

BENCHMARK_MAIN();
