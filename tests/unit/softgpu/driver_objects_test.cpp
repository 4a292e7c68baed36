// Further driver objects: arrays, batches of memory operations, linked units, primary contexts, failed assertions.
#include <cstring>

#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {
namespace {

TEST_F(DriverTest, ArraysAreCopiedToAndFromInThreeDimensions) {
    const CUDA_ARRAY3D_DESCRIPTOR shape{5, 4, 3, CU_AD_FORMAT_UNSIGNED_INT16, 2, 0};
    CUarray array = nullptr;
    OK(CALL(cuArray3DCreate_v2)(&array, &shape));
    std::vector<unsigned> in(5 * 4 * 3), out(2 * 2 * 2);
    for (unsigned i = 0; i < in.size(); ++i) {
        in[i] = i;
    }
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = in.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = 20, copy.Height = 4, copy.Depth = 3;
    OK(CALL(cuMemcpy3D_v2)(&copy));
    CUDA_MEMCPY3D part{};
    part.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    part.srcArray = array;
    part.srcXInBytes = 12, part.srcY = 1, part.srcZ = 1;
    part.dstMemoryType = CU_MEMORYTYPE_HOST;
    part.dstHost = out.data();
    part.WidthInBytes = 8, part.Height = 2, part.Depth = 2;
    OK(CALL(cuMemcpy3D_v2)(&part));
    const auto at = [](unsigned x, unsigned y, unsigned z) { return x + 5 * (y + 4 * z); };
    EXPECT_EQ((std::vector<unsigned>{at(3, 1, 1), at(4, 1, 1), at(3, 2, 1), at(4, 2, 1), at(3, 1, 2), at(4, 1, 2),
                                     at(3, 2, 2), at(4, 2, 2)}),
              out);
    part.srcZ = 2;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemcpy3D_v2)(&part)) << "beyond the array";
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuMemcpyHtoA_v2)(array, 0, in.data(), 4)) << "it is no line";
    CUDA_ARRAY_DESCRIPTOR flat{};
    OK(CALL(cuArrayGetDescriptor_v2)(&flat, array));
    EXPECT_EQ(5U, flat.Width);
    OK(CALL(cuArrayDestroy)(array));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CALL(cuArrayDestroy)(array));
    const CUDA_ARRAY_DESCRIPTOR three{4, 4, CU_AD_FORMAT_UNSIGNED_INT8, 3};
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuArrayCreate_v2)(&array, &three));
}

TEST_F(DriverTest, ArraysAreCounted) {
    size_t before = 0, held = 0, after = 0, total = 0;
    OK(CALL(cuMemGetInfo_v2)(&before, &total));
    const CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = nullptr;
    OK(CALL(cuArrayCreate_v2)(&array, &shape));
    OK(CALL(cuMemGetInfo_v2)(&held, &total));
    EXPECT_EQ(std::size_t{4} << 20, before - held);
    OK(CALL(cuArrayDestroy)(array));
    OK(CALL(cuMemGetInfo_v2)(&after, &total));
    EXPECT_EQ(before, after);
}

TEST_F(DriverTest, BatchOfMemoryOperationsRunsInOrder) {
    const CUdeviceptr words = upload(std::vector<unsigned>(4));
    CUstreamBatchMemOpParams batch[3] = {};
    batch[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    batch[0].writeValue.address = words;
    batch[0].writeValue.value64 = 0x0000000700000005;
    batch[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    batch[1].waitValue.address = words + 4;
    batch[1].waitValue.value = 7;
    batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    batch[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[2].writeValue.address = words + 8;
    batch[2].writeValue.value = 9;
    OK(CALL(cuStreamBatchMemOp_v2)(nullptr, 3, batch, 0));
    EXPECT_EQ((std::vector<unsigned>{5, 7, 9, 0}), download<unsigned>(words, 4));
    batch[2].writeValue.address = words + 2;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuStreamBatchMemOp_v2)(nullptr, 3, batch, 0)) << "misaligned";
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuStreamBatchMemOp_v2)(nullptr, 257, batch, 0));
}

#define PTX_HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

// Calls a function and reads a variable of the other unit; each unit has its own `hidden`.
constexpr const char* kCallingUnit = PTX_HEAD
    ".extern .func (.param .b32 r) next(.param .b32 a);\n"
    ".extern .global .align 4 .u32 shared_counter;\n"
    ".global .align 4 .u32 hidden = 100;\n"
    ".visible .entry k(.param .u64 p) { .reg .b32 %r<5>; .reg .b64 %d<3>; ld.param.u64 %d1,[p];\n"
    " ld.global.u32 %r1,[shared_counter]; ld.global.u32 %r3,[hidden];\n"
    " { .param .b32 a; st.param.b32 [a],%r1; .param .b32 r; call.uni (r), next, (a); ld.param.b32 %r2,[r]; }\n"
    " add.u32 %r2,%r2,%r3; st.global.u32 [%d1],%r2; ret; }\n";
constexpr const char* kCalledUnit = PTX_HEAD
    ".visible .global .align 4 .u32 shared_counter = 20;\n"
    ".global .align 4 .u32 hidden = 1;\n"
    ".visible .func (.param .b32 r) next(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1,[a];\n"
    " ld.global.u32 %r2,[hidden]; add.u32 %r1,%r1,%r2; st.param.b32 [r],%r1; ret; }\n";

CUresult add_unit(CUlinkState state, const char* text) {
    return CALL(cuLinkAddData_v2)(state, CU_JIT_INPUT_PTX, const_cast<char*>(text), std::strlen(text) + 1, "unit", 0,
                                  nullptr, nullptr);
}

TEST_F(DriverTest, UnitsAreLinked) {
    CUlinkState state = nullptr;
    OK(CALL(cuLinkCreate_v2)(0, nullptr, nullptr, &state));
    OK(add_unit(state, kCallingUnit));
    OK(add_unit(state, kCalledUnit));
    void* image = nullptr;
    size_t bytes = 0;
    OK(CALL(cuLinkComplete)(state, &image, &bytes));
    const std::string copy(static_cast<const char*>(image), bytes);  // a copy, as a client makes one
    OK(CALL(cuLinkDestroy)(state));
    CUmodule module = nullptr;
    OK(CALL(cuModuleLoadData)(&module, copy.data()));
    CUfunction function = nullptr;
    OK(CALL(cuModuleGetFunction)(&function, module, "k"));
    CUdeviceptr out = upload(std::vector<int>{0});
    void* params[] = {&out};
    OK(CALL(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_EQ(20 + 1 + 100, download<int>(out, 1)[0]);
    int architecture = 0;
    OK(CALL(cuFuncGetAttribute)(&architecture, CU_FUNC_ATTRIBUTE_PTX_VERSION, function));
    EXPECT_EQ(75, architecture);
}

TEST_F(DriverTest, MissingOrDuplicateSymbolsFailToLink) {
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    CUlinkState state = nullptr;
    void* image = nullptr;
    size_t bytes = 0;
    OK(CALL(cuLinkCreate_v2)(2, options, values, &state));
    OK(add_unit(state, kCallingUnit));
    EXPECT_NE(CUDA_SUCCESS, CALL(cuLinkComplete)(state, &image, &bytes));
    EXPECT_NE(nullptr, std::strstr(log, "shared_counter")) << log;
    OK(add_unit(state, kCalledUnit));
    EXPECT_EQ(CUDA_ERROR_INVALID_SOURCE, add_unit(state, kCalledUnit));
    EXPECT_NE(nullptr, std::strstr(log, "Multiple definition")) << log;
    EXPECT_EQ(CUDA_ERROR_INVALID_SOURCE, CALL(cuLinkComplete)(state, &image, &bytes));
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, add_unit(state, "no PTX"));
    OK(CALL(cuLinkDestroy)(state));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CALL(cuLinkDestroy)(state));
}

TEST_F(DriverTest, LaterPtxVersionIsReportedAsUnsupported) {
    CUmodule module = nullptr;
    EXPECT_EQ(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
              CALL(cuModuleLoadData)(&module, ".version 9.1\n.target sm_75\n.address_size 64\nwhatever that is\n"));
}

TEST_F(DriverTest, ResetDestroysAPrimaryContextAndKeepsItsRetainCount) {
    CUcontext primary = nullptr, again = nullptr;
    unsigned flags = 0;
    int active = 0;
    OK(CALL(cuDevicePrimaryCtxRetain)(&primary, 0));
    OK(CALL(cuDevicePrimaryCtxReset_v2)(0));
    OK(CALL(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(0, active);
    OK(CALL(cuCtxPushCurrent_v2)(primary));
    CUdeviceptr none = 0;
    EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, CALL(cuMemAlloc_v2)(&none, 16));
    OK(CALL(cuDevicePrimaryCtxRetain)(&again, 0));
    EXPECT_EQ(primary, again);
    OK(CALL(cuMemAlloc_v2)(&none, 16));
    OK(CALL(cuCtxPopCurrent_v2)(&again));
    OK(CALL(cuDevicePrimaryCtxRelease_v2)(0));
    OK(CALL(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(1, active) << "the first retain still counts";
    OK(CALL(cuDevicePrimaryCtxRelease_v2)(0));
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, CALL(cuDevicePrimaryCtxRelease_v2)(0));
}

TEST_F(DriverTest, FreeNeedsNoCurrentContext) {
    const CUdeviceptr block = upload(std::vector<int>{1});
    CUcontext popped = nullptr;
    OK(CALL(cuCtxPopCurrent_v2)(&popped));
    EXPECT_EQ(CUDA_SUCCESS, CALL(cuMemFree_v2)(block));
    OK(CALL(cuCtxPushCurrent_v2)(popped));
}

TEST_F(DriverTest, FailedAssertionIsReportedAndPoisonsTheContext) {
    const CUdeviceptr zero = upload(std::vector<int>{0});
    ::testing::internal::CaptureStderr();
    OK(launch("assert_positive", {1}, {2}, 0, nullptr, zero));
    const CUresult result = CALL(cuCtxSynchronize)();
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(CUDA_ERROR_ASSERT, result);
    EXPECT_NE(
        std::string::npos,
        text.find("assert_positive(const int *): block: [0,0,0], thread: [1,0,0] Assertion `*value > 0` failed.\n"))
        << text;
    EXPECT_EQ(std::string::npos, text.find("gpupool")) << "and nothing else: " << text;
}

}  // namespace
}  // namespace gpupool::softgpu_test
