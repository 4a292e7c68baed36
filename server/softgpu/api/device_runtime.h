// PTX for the part of NVIDIA's device runtime that cooperative groups and conditional nodes need. A program that links
// with libcudadevrt.a, which contains machine code only, is linked with this instead.
//
// Threads: constants. Errors: none. The functions to launch kernels from kernels are missing, so linking reports them
//   as undefined.
#pragma once

#include <string_view>

namespace gpupool::softgpu {

// An archive member that only libcudadevrt.a has.
constexpr std::string_view kDeviceRuntimeMember = "cuda_device_runtime.o";
// A symbol that the library's machine code defines.
constexpr std::string_view kDeviceRuntimeSymbol = "cudaCGGetIntrinsicHandle";

// The handle of the grid is the address of a cooperative launch's workspace. Its second word counts arrivals: each
// block adds 1, except for the first block, which adds a value such that the highest bit flips when all blocks have
// arrived.
//
// Sets %p by comparing an index with zero in all three dimensions.
#define GPUPOOL_IS_FIRST(index, comparison) \
    "    mov.u32 %a, " index                \
    ".x;\n"                                 \
    "    mov.u32 %b, " index                \
    ".y;\n"                                 \
    "    or.b32 %a, %a, %b;\n"              \
    "    mov.u32 %b, " index                \
    ".z;\n"                                 \
    "    or.b32 %a, %a, %b;\n"              \
    "    setp." comparison ".u32 %p, %a, 0;\n"
constexpr std::string_view kDeviceRuntimePtx = R"(.version 7.0
.target sm_70
.address_size 64
.visible .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .pred %is_grid;
    .reg .b32 %low, %high, %scope;
    .reg .b64 %workspace;
    ld.param.u32 %scope, [scope];
    setp.eq.u32 %is_grid, %scope, 1;
    mov.u32 %low, %envreg2;
    mov.u32 %high, %envreg1;
    mov.b64 %workspace, {%low, %high};
    selp.b64 %workspace, %workspace, 0, %is_grid;
    st.param.b64 [handle], %workspace;
    ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .pred %p;
    .reg .b32 %add, %before, %now, %a, %b;
    .reg .b64 %arrived;
    ld.param.u64 %arrived, [handle];
    setp.eq.u64 %p, %arrived, 0;
    @%p bra none;
    add.u64 %arrived, %arrived, 4;
    bar.sync 0;
)" GPUPOOL_IS_FIRST("%tid", "ne") R"(
    @%p bra done;
    mov.u32 %a, %nctaid.x;
    mov.u32 %b, %nctaid.y;
    mul.lo.u32 %a, %a, %b;
    mov.u32 %b, %nctaid.z;
    mul.lo.u32 %a, %a, %b;
    sub.u32 %add, 0x80000001, %a;
)" GPUPOOL_IS_FIRST("%ctaid", "eq") R"(
    selp.u32 %add, %add, 1, %p;
    membar.gl;
    atom.global.add.u32 %before, [%arrived], %add;
wait:
    ld.volatile.global.u32 %now, [%arrived];
    xor.b32 %now, %now, %before;
    setp.ge.s32 %p, %now, 0;
    @%p bra wait;
    membar.gl;
done:
    bar.sync 0;
    st.param.b32 [result], 0;
    ret;
none:
    st.param.b32 [result], 1;
    ret;
}
.visible .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value)
{
    .reg .b32 %value;
    .reg .b64 %word;
    ld.param.u64 %word, [handle];
    ld.param.u32 %value, [value];
    st.global.u32 [%word], %value;
    ret;
}
)";
#undef GPUPOOL_IS_FIRST

}  // namespace gpupool::softgpu
