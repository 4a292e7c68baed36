// PTX that nvcc does not generate: what is refused, and with which message.
#include <gtest/gtest.h>

#include "server/softgpu/exec/compile.h"
#include "server/softgpu/ptx/link.h"

namespace gpupool::softgpu {
namespace {

std::string error_of(const std::string& body) {
    auto result = compile(".version 8.0\n.target sm_80\n.address_size 64\n" + body);
    return result ? "" : result.error().message;
}

TEST(Ptx, GarbageIsRefusedWithTheLine) {
    EXPECT_FALSE(compile("").ok());
    EXPECT_FALSE(compile("this is not PTX").ok());
    EXPECT_NE(std::string::npos,
              error_of(".entry k() {\n\n.reg .b32 %r<2>;\nadd.u32 %r1, %r9, 1;\nret; }").find("line 7"));
    EXPECT_FALSE(error_of(".entry k( {").empty());
    EXPECT_FALSE(error_of(".entry k() {").empty());
    EXPECT_FALSE(error_of(".entry k() { bra nowhere; }").empty());
    EXPECT_FALSE(error_of(".entry k() { .reg .b64 %rd<2>; add.u32 %rd1, %rd1, 1; ret; }").empty());
    EXPECT_FALSE(error_of(".global .b32 x[99999999999];").empty());
    EXPECT_FALSE(error_of(".entry k() { .reg .b32 %r<99999999>; }").empty());
    EXPECT_FALSE(error_of(".entry k() { .reg .b32 %r; ld.param.u32 %r, [nothing]; }").empty());
}

TEST(Ptx, ParameterLayoutMatchesTheDriver) {
    auto module = compile(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a, .param .u8 b, .param .f64 c, "
        ".param .align 8 .b8 d[32], .param .u16 e) { ret; }");
    ASSERT_TRUE(module.ok()) << module.error().message;
    const auto& params = (*module)->functions[0].params;
    const std::uint32_t offsets[] = {0, 8, 16, 24, 56}, sizes[] = {8, 1, 8, 32, 2};
    ASSERT_EQ(5U, params.size());
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(offsets[i], params[i].offset_bytes);
        EXPECT_EQ(sizes[i], params[i].size_bytes);
    }
    EXPECT_EQ(58U, (*module)->functions[0].param_bytes);
}

// Every prefix of a valid text is either refused or compiled; none may crash.
TEST(Ptx, TruncatedTextNeverCrashes) {
    const std::string text =
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .align 8 .u64 p[2] = {generic(q), 5};\n.global .u32 q "
        "= 3;\n"
        ".func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; add.u32 %r2, %r1, 1; "
        "st.param.b32 [r], %r2; ret; }\n.entry k(.param .u64 o) { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<3>; "
        "L: mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 3; @%p1 bra L; { .param .b32 x; st.param.b32 [x], %r1; .param "
        ".b32 y; "
        "call (y), f, (x); ld.param.b32 %r2, [y]; } ld.param.u64 %rd1, [o]; st.global.v2.u32 [%rd1+8], {%r1, %r2}; "
        "ret; }";
    ASSERT_TRUE(compile(text).ok()) << compile(text).error().message;
    for (std::size_t length = 0; length < text.size(); ++length) {
        (void)compile(text.substr(0, length)).ok();
    }
}

std::uint32_t registers_of(const std::string& text, std::uint32_t limit) {
    const auto module = compile(text, limit);
    EXPECT_TRUE(module.ok()) << module.error().message;
    return module ? (*module)->functions.back().register_count : 0;
}

// A kernel of many registers. The limits are those that ptxas 13.0 obeys for it.
std::string of_many_registers(const std::string& directives) {
    std::string text =
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() " + directives + " { .reg .b32 %r<1000>;\n";
    for (int i = 0; i < 1000; ++i) {
        text += "mov.u32 %r" + std::to_string(i) + ", 1;\n";
    }
    return text + "ret; }";
}

TEST(Ptx, AKernelsOwnLimitOfRegistersCounts) {
    struct Case {
        const char* directives;
        std::uint32_t limit;  // 0: none
        std::uint32_t registers;
    };
    for (const Case& one : {Case{"", 0, 255}, Case{"", 40, 40}, Case{"", 10, 24}, Case{".maxnreg 64", 0, 64},
                            Case{".maxnreg 64", 40, 64}, Case{".maxnreg 10", 0, 24}, Case{".maxnreg 300", 40, 255},
                            Case{".maxntid 128, 1, 1", 40, 255}, Case{".maxntid 1024, 1, 1", 40, 64},
                            Case{".reqntid 768, 1, 1", 0, 80}, Case{".maxntid 256, 1, 1 .minnctapersm 4", 40, 64},
                            Case{".maxntid 1024, 1, 1 .maxnreg 100", 40, 100}, Case{".minnctapersm 2", 40, 40}}) {
        EXPECT_EQ(one.registers, registers_of(of_many_registers(one.directives), one.limit))
            << one.directives << " with a limit of " << one.limit;
    }
    EXPECT_FALSE(error_of(".entry k() .maxnreg 0 { ret; }").empty());
}

TEST(Ptx, ALinkedUnitKeepsItsLimitOfRegisters) {
    const std::string kernel = of_many_registers("");
    EXPECT_EQ(40U, registers_of(ptx::join_units({{kernel, 40}}), 0));
    EXPECT_EQ(40U, registers_of(ptx::join_units({{kernel, 40}}), 30));
    EXPECT_EQ(255U, registers_of(ptx::join_units({{kernel, ptx::kMostRegisters}}), 30));
    EXPECT_EQ(30U, registers_of(ptx::join_units({{kernel}}), 30));
}

}  // namespace
}  // namespace gpupool::softgpu
