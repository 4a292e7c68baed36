// Which images' kernels may print. A container's entries count, compressed or not; an unreadable image counts as
// printing.

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "server/worker/images/image_memory.h"
#include "tests/unit/common/fixtures.h"

namespace gpupool::test {
namespace {

using fatbin::Kind;
bool image_prints(fatbin::Bytes image) {
    return worker::image_memory(image).may_print;
}

constexpr std::string_view kSilent = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";
constexpr std::string_view kPrinting =
    ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 "
    "a);\n";

// As Images stores it, with a NUL at its end.
std::vector<std::byte> image(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    std::vector<std::byte> made(bytes.begin(), bytes.end());
    made.push_back(std::byte{0});
    return made;
}

std::vector<std::byte> container(std::string_view text, Kind kind = Kind::ptx) {
    std::vector<std::byte> made = fatbin::test::make_container({{kind, 90, 0, std::string(text)}});
    made.push_back(std::byte{0});
    return made;
}

TEST(ImagePrints, PtxThatMentionsPrinting) {
    EXPECT_FALSE(image_prints(image(kSilent)));
    EXPECT_TRUE(image_prints(image(kPrinting)));
}

TEST(ImagePrints, ContainersEntries) {
    EXPECT_FALSE(image_prints(container(kSilent)));
    EXPECT_TRUE(image_prints(container(kPrinting)));
    EXPECT_TRUE(image_prints(container(kSilent, Kind::lto_ir))) << "LTO IR does not contain function names as text";
}

TEST(ImagePrints, CompressedAndPlainEntriesAreRead) {
    for (const char* const name : {"none.fatbin", "size.fatbin", "speed.fatbin", "balance.fatbin", "kernels.cubin"}) {
        EXPECT_FALSE(image_prints(fatbin::test::fixture(name))) << name;
    }
    for (const char* const name : {"printing_none.fatbin", "printing_size.fatbin"}) {
        EXPECT_TRUE(image_prints(fatbin::test::fixture(name))) << name;
    }
}

TEST(ImagePrints, ConsecutiveContainersAreAllRead) {
    std::vector<std::byte> row = fatbin::test::make_container({{Kind::ptx, 90, 0, std::string(kSilent)}});
    const std::vector<std::byte> linked = container(kPrinting);
    row.insert(row.end(), linked.begin(), linked.end());
    EXPECT_TRUE(image_prints(row));
}

TEST(ImagePrints, UnreadableImagesCountAsPrinting) {
    std::vector<std::byte> damaged = container(kSilent);
    damaged.resize(damaged.size() / 2);
    EXPECT_TRUE(image_prints(damaged));
}

}  // namespace
}  // namespace gpupool::test
