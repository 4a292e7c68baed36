// Kernel names and parameter layouts, the cubin's against the PTX's, both of the same source.
#include <gtest/gtest.h>

#include <map>

#include "common/fatbin/kernels.h"
#include "common/fatbin/unpack.h"
#include "tests/unit/common/fixtures.h"

namespace gpupool::fatbin::test {
namespace {

using Parameters = std::vector<KernelParameter>;

std::map<std::string, KernelLayout> by_name(const Result<std::vector<KernelLayout>>& kernels) {
    std::map<std::string, KernelLayout> result;
    EXPECT_TRUE(kernels) << kernels.error().message;
    if (!kernels) return result;
    for (const KernelLayout& kernel : *kernels) result[kernel.name] = kernel;
    EXPECT_EQ(result.size(), kernels->size());
    return result;
}

void expect_layouts(const std::map<std::string, KernelLayout>& kernels) {
    ASSERT_EQ(kernels.size(), 5u);
    const KernelLayout& mixed = kernels.at("mixed");
    EXPECT_EQ(mixed.parameters, (Parameters{{0, 8}, {8, 1}, {16, 8}, {24, 32}, {56, 2}}));
    EXPECT_EQ(mixed.parameter_block_bytes, 58u);
    EXPECT_TRUE(kernels.at("no_parameters").parameters.empty());
    EXPECT_EQ(kernels.at("no_parameters").parameter_block_bytes, 0u);
    EXPECT_EQ(kernels.at("large_block").parameters, (Parameters{{0, 8}, {8, 6000}}));
    EXPECT_EQ(kernels.at("large_block").parameter_block_bytes, 6008u);
    EXPECT_EQ(kernels.at("_Z5saxpyIfEvPT_PKS0_S0_i").parameters, (Parameters{{0, 8}, {8, 8}, {16, 4}, {20, 4}}));
    EXPECT_EQ(kernels.at("_Z5saxpyIdEvPT_PKS0_S0_i").parameters, (Parameters{{0, 8}, {8, 8}, {16, 8}, {24, 4}}));
}

TEST(Kernels, OfACubin) {
    expect_layouts(by_name(cubin_kernels(fixture("kernels.cubin"))));
}

TEST(Kernels, OfAText) {
    const auto file = fixture("kernels.ptx");
    expect_layouts(by_name(ptx_kernels({reinterpret_cast<const char*>(file.data()), file.size() - 1})));
}

TEST(Kernels, OfEveryEntryOfAContainer) {
    const auto file = fixture("size.fatbin");
    auto entries = container_entries(file);
    ASSERT_TRUE(entries);
    for (const Entry& entry : *entries) {
        auto contents = unpack(entry);
        ASSERT_TRUE(contents);
        SCOPED_TRACE(entry.arch);
        expect_layouts(
            by_name(entry.kind == Kind::ptx ? ptx_kernels(contents->text()) : cubin_kernels(contents->bytes())));
    }
}

TEST(Kernels, TextIsReadAsALanguage) {
    const auto kernels = by_name(ptx_kernels(R"(
        // .entry commented(.param .u8 x)
        /* .entry also(.param .u8 x) */
        .file 1 ".entry quoted"
        .weak .entry k$1(
            .param .align 16 .b8 p0[20],
            .param .u64 .ptr .global .align 128 p1,
            .param .b8 p2[3],
            .param .f16 p3
        ) .maxntid 1, 1, 1 { ret; }
        .entry bare { ret; }
        .entry empty() { ret; })"));
    ASSERT_EQ(kernels.size(), 3u);
    EXPECT_EQ(kernels.at("k$1").parameters, (Parameters{{0, 20}, {24, 8}, {32, 3}, {36, 2}}));
    EXPECT_EQ(kernels.at("k$1").parameter_block_bytes, 38u);
    EXPECT_TRUE(kernels.at("bare").parameters.empty());
    EXPECT_TRUE(kernels.at("empty").parameters.empty());
}

TEST(Kernels, DamagedTextIsRefused) {
    for (const char* text : {".entry", ".entry (", ".entry k(", ".entry k(.param .u32 a", ".entry k(.param .what a)",
                             ".entry k(.param .b8 a[])", ".entry k(.param .b8 a[4000000000])",
                             ".entry k(.param .align 3 .b8 a[4])", ".entry k(.reg .u32 a)"}) {
        EXPECT_FALSE(ptx_kernels(text)) << text;
    }
}

TEST(Kernels, DamagedCubinsAreSurvived) {
    const auto file = fixture("kernels.cubin");
    for (std::size_t size = 0; size < file.size(); size += 61) (void)cubin_kernels(Bytes(file).first(size));
    EXPECT_FALSE(cubin_kernels(Bytes(file).first(file.size() / 2)));
    unsigned refused = 0;
    for (std::size_t at = 0; at < file.size(); at += 3) {
        auto damaged = file;
        damaged[at] ^= std::byte{0xFF};
        if (!cubin_kernels(damaged)) ++refused;
    }
    EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace gpupool::fatbin::test
