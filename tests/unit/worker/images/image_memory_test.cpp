// What the code of an image takes of the device's memory, computed before it is loaded.
#include "server/worker/images/image_memory.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace gpupool::worker {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

ImageMemory of_text(const std::string& ptx) {
    return image_memory(std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1)));
}

std::uint64_t data_of(const std::string& declarations) {
    return of_text(".version 7.0\n.target sm_70\n.address_size 64\n" + declarations).data_bytes;
}

TEST(ImageMemory, CountsTheVariablesOfPtx) {
    EXPECT_EQ(data_of(".visible .global .align 4 .b8 g[1000];\n"), 1000u);
    EXPECT_EQ(data_of(".global .f64 a;\n.global .v4 .f32 b[2][3] = {1, 2};\n.const .u16 c[7];"), 8u + 96 + 14);
    EXPECT_EQ(data_of(".visible .global .align 4 .b8 g[67108865];\n"), 66 * kMiB) << "whole pages";
    EXPECT_EQ(data_of(".extern .global .b8 a[16];\n// .global .b8 b[16];\n/* .global .b8 c[16]; */"), 0u);
    EXPECT_EQ(data_of(".visible .entry k() { .reg .u32 %r1; ld.global.u32 %r1, [0]; st.const.u32 [0], %r1; ret; }"),
              0u);
    EXPECT_EQ(data_of(".global .texref t;\n.global .samplerref s;"), 0u);
    EXPECT_LE(data_of(".global .b8 g[18446744073709551615];.global .b64 h[99999999999][99999999999];"),
              std::uint64_t{1} << 47);
    EXPECT_EQ(data_of(".global"), 0u);
    EXPECT_EQ(data_of(".global .b8 g["), 0u);
}

// PTX has more ways to write a size than decimal numbers, and several variables in one declaration.
TEST(ImageMemory, CountsVariablesHoweverTheyAreWritten) {
    const auto mib = [](const std::string& declaration) { return data_of(declaration) / kMiB; };
    EXPECT_EQ(mib(".global .b8 w[0x1000000];"), 16u);
    EXPECT_EQ(mib(".global .b8 w[0X1000000U];"), 16u);
    EXPECT_EQ(mib(".global .b8 w[0100000000];"), 16u);
    EXPECT_EQ(mib(".global .b8 w[0b1000000000000000000000000];"), 16u);
    EXPECT_EQ(mib(".global .u32 a[0x400000], b[4194304];"), 32u);
    EXPECT_EQ(mib(".global .align 4 .u32 a[4194304] = {1, 2, 3}, b[4194304] = {4, 5};"), 32u);
    EXPECT_EQ(mib(".global .f16x2 a[4194304];"), 16u);
    EXPECT_EQ(mib(".const .bf16x2 a[4194304];"), 16u);
    EXPECT_EQ(mib(".global .v4 .f32 a[1024][1024];"), 16u);
    EXPECT_EQ(mib(".global .b8 w[0xffffffffffffffffffff];"), mib(".global .b8 w[99999999999999999999];"));
}

TEST(ImageMemory, FindsWhatNeedsTheDevicesRuntime) {
    EXPECT_FALSE(of_text(".visible .entry malloc_2() { ret; }").allocates);
    const ImageMemory both = of_text(
        ".extern .func (.param .b64 r) malloc (.param .b64 n);\n.extern .func (.param .b32 r) vprintf (.param .b64 "
        "f);");
    EXPECT_TRUE(both.allocates);
    EXPECT_TRUE(both.prints);
}

struct Section {
    std::string name;
    std::uint64_t bytes;
};

std::vector<std::byte> cubin(const std::vector<Section>& sections) {
    std::string names(1, '\0');
    std::vector<Elf64_Shdr> headers;
    for (const Section& section : sections) {
        Elf64_Shdr header{};
        header.sh_name = static_cast<Elf64_Word>(names.size());
        header.sh_type = SHT_NOBITS;
        header.sh_size = section.bytes;
        names += section.name + '\0';
        headers.push_back(header);
    }
    Elf64_Shdr strings{};
    strings.sh_type = SHT_STRTAB;
    strings.sh_offset = sizeof(Elf64_Ehdr);
    strings.sh_size = names.size();
    headers.push_back(strings);
    Elf64_Ehdr elf{};
    std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    elf.e_ident[EI_DATA] = ELFDATA2LSB;
    elf.e_machine = 190;  // CUDA
    elf.e_ehsize = sizeof elf;
    elf.e_shentsize = sizeof(Elf64_Shdr);
    elf.e_shoff = (sizeof elf + names.size() + 7) / 8 * 8;
    elf.e_shnum = static_cast<Elf64_Half>(headers.size());
    elf.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
    std::vector<std::byte> bytes(elf.e_shoff + headers.size() * sizeof(Elf64_Shdr));
    std::memcpy(bytes.data(), &elf, sizeof elf);
    std::memcpy(bytes.data() + sizeof elf, names.data(), names.size());
    std::memcpy(bytes.data() + elf.e_shoff, headers.data(), headers.size() * sizeof(Elf64_Shdr));
    return bytes;
}

TEST(ImageMemory, CountsTheSectionsOfACubin) {
    const auto image = cubin({{".nv.global", 3 * kMiB},
                              {".nv.global.init", 100},
                              {".nv.constant3", 20},
                              {".nv.constant0.kernel", 500},
                              {".nv.shared.kernel", 4096},
                              {".text.kernel", 1280},
                              {".text.other", 256},
                              {".debug_line", 999}});
    const ImageMemory memory = image_memory(image);
    EXPECT_EQ(memory.data_bytes, 4 * kMiB + 120);
    EXPECT_EQ(memory.code_bytes.at("kernel"), 1280u);
    EXPECT_EQ(memory.code_bytes.size(), 2u);
    EXPECT_FALSE(memory.allocates);
    EXPECT_TRUE(image_memory(cubin({{"malloc", 0}})).allocates) << "a name";
}

TEST(ImageMemory, ReadsNothingOutsideOfTheImage) {
    const auto whole = cubin({{".nv.global", 3 * kMiB}, {".text.kernel", 1280}});
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        (void)image_memory(part);
    }
    auto hostile = whole;
    std::memset(hostile.data() + offsetof(Elf64_Ehdr, e_shoff), 0xff, 8);
    EXPECT_EQ(image_memory(hostile).data_bytes, 0u);
}

}  // namespace
}  // namespace gpupool::worker
