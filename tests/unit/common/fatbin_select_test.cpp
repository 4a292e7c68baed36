// Which entries a device uses, and containers made of a selection.
#include <gtest/gtest.h>

#include "common/fatbin/select.h"
#include "common/fatbin/unpack.h"
#include "tests/unit/common/fixtures.h"

namespace gpupool::fatbin::test {
namespace {

using Choice = std::pair<Kind, std::uint32_t>;

std::vector<Choice> choices(std::span<const Entry> entries, ComputeCapability device,
                            Preference preference = Preference::as_driver) {
    std::vector<Choice> result;
    for (const Entry& entry : select(entries, device, preference)) {
        result.emplace_back(entry.kind, entry.arch);
    }
    return result;
}

struct Made {
    explicit Made(const std::vector<MadeEntry>& made) : container(make_container(made)) {
        auto read = container_entries(container);
        if (read) {
            entries = *read;
        }
    }
    std::vector<std::byte> container;
    std::vector<Entry> entries;
};

TEST(Select, TakesTheEntriesForTheDevice) {
    const auto file = fixture("balance.fatbin");
    const auto entries = container_entries(file);
    ASSERT_TRUE(entries);
    EXPECT_EQ(choices(*entries, {7, 5}), (std::vector<Choice>{{Kind::cubin, 75}}));
    EXPECT_EQ(choices(*entries, {8, 0}), (std::vector<Choice>{{Kind::cubin, 80}}));
    EXPECT_EQ(choices(*entries, {8, 9}), (std::vector<Choice>{{Kind::cubin, 80}}));
    EXPECT_EQ(choices(*entries, {9, 0}), (std::vector<Choice>{{Kind::cubin, 90}}));
    EXPECT_EQ(choices(*entries, {10, 0}), (std::vector<Choice>{{Kind::cubin, 100}}));
    EXPECT_EQ(choices(*entries, {10, 3}), (std::vector<Choice>{{Kind::cubin, 100}}));
    EXPECT_EQ(choices(*entries, {12, 0}), (std::vector<Choice>{{Kind::ptx, 90}}));
    EXPECT_EQ(choices(*entries, {7, 0}), (std::vector<Choice>{}));
}

TEST(Select, HonoursThePreference) {
    const auto file = fixture("balance.fatbin");
    const auto entries = container_entries(file);
    ASSERT_TRUE(entries);
    EXPECT_EQ(choices(*entries, {8, 0}, Preference::ptx_only), (std::vector<Choice>{{Kind::ptx, 75}}));
    EXPECT_EQ(choices(*entries, {9, 0}, Preference::ptx_only), (std::vector<Choice>{{Kind::ptx, 90}}));
    EXPECT_EQ(choices(*entries, {12, 0}, Preference::cubin_only), (std::vector<Choice>{}));
}

TEST(Select, ArchSpecificCodeRunsNowhereElse) {
    const Made made({{Kind::ptx, 90, flag::kArchSpecific, "a"}, {Kind::ptx, 80, 0, "b"}});
    EXPECT_EQ(choices(made.entries, {9, 0}), (std::vector<Choice>{{Kind::ptx, 90}}));
    EXPECT_EQ(choices(made.entries, {10, 0}), (std::vector<Choice>{{Kind::ptx, 80}}));
    const Made cubin({{Kind::cubin, 100, flag::kArchSpecific, "a"}});
    EXPECT_EQ(choices(cubin.entries, {10, 3}), (std::vector<Choice>{}));
}

TEST(Select, FamilyCodeStaysInTheFamily) {
    const Made made({{Kind::ptx, 100, flag::kFamilySpecific, "f"}, {Kind::ptx, 90, 0, "b"}});
    EXPECT_EQ(choices(made.entries, {10, 3}), (std::vector<Choice>{{Kind::ptx, 100}}));
    EXPECT_EQ(choices(made.entries, {12, 0}), (std::vector<Choice>{{Kind::ptx, 90}}));
    EXPECT_EQ(choices(made.entries, {10, 1}), (std::vector<Choice>{{Kind::ptx, 90}}));
}

TEST(Select, MachineCodeNeedsTheSameMajorAndNoLaterMinor) {
    const Made made({{Kind::cubin, 86, 0, "x"}, {Kind::cubin, 80, 0, "y"}, {Kind::ptx, 70, 0, "z"}});
    EXPECT_EQ(choices(made.entries, {8, 0}), (std::vector<Choice>{{Kind::cubin, 80}}));
    EXPECT_EQ(choices(made.entries, {8, 9}), (std::vector<Choice>{{Kind::cubin, 86}}));
    EXPECT_EQ(choices(made.entries, {9, 0}), (std::vector<Choice>{{Kind::ptx, 70}}));
}

TEST(Select, SortsEqualEntriesBySpecificity) {
    const Made made({{Kind::cubin, 90, 0, "plain"}, {Kind::cubin, 90, flag::kArchSpecific, "a"}});
    const auto chosen = select(made.entries, {9, 0});
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_NE(chosen[0].flags & flag::kArchSpecific, 0u);
}

TEST(Select, IntermediateCodeIsTheLastResort) {
    const Made made({{Kind::lto_ir, 80, 0, "lto"}, {Kind::ptx, 75, 0, "ptx"}});
    EXPECT_EQ(choices(made.entries, {9, 0}), (std::vector<Choice>{{Kind::ptx, 75}}));
    const Made alone({{Kind::lto_ir, 80, 0, "lto"}});
    EXPECT_EQ(choices(alone.entries, {9, 0}), (std::vector<Choice>{{Kind::lto_ir, 80}}));
    EXPECT_EQ(choices(alone.entries, {9, 0}, Preference::ptx_only), (std::vector<Choice>{}));
}

TEST(Select, BareImageIsLeftToTheDriver) {
    const auto file = fixture("kernels.cubin");
    auto image = inspect(file);
    ASSERT_TRUE(image);
    const auto entries = image_entries(*image);
    ASSERT_TRUE(entries);
    EXPECT_EQ(select(*entries, {9, 0}).size(), 1u);
    EXPECT_FALSE(repack(*entries));
}

TEST(Repack, CompleteSelectionGivesTheSameBytes) {
    for (const char* name : {"none.fatbin", "size.fatbin", "speed.fatbin", "balance.fatbin"}) {
        const auto file = fixture(name);
        const auto entries = container_entries(file);
        ASSERT_TRUE(entries);
        auto again = repack(*entries);
        ASSERT_TRUE(again);
        EXPECT_EQ(*again, file) << name;
    }
}

TEST(Repack, SelectionIsAContainer) {
    const auto file = fixture("size.fatbin");
    const auto entries = container_entries(file);
    ASSERT_TRUE(entries);
    const auto chosen = select(*entries, {8, 0});
    ASSERT_EQ(chosen.size(), 1u);
    auto packed = repack(chosen);
    ASSERT_TRUE(packed);
    EXPECT_LT(packed->size(), file.size());
    const auto read = container_entries(*packed);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->size(), 1u);
    auto before = unpack(chosen[0]);
    auto after = unpack(read->front());
    ASSERT_TRUE(before && after);
    EXPECT_TRUE(
        std::equal(before->bytes().begin(), before->bytes().end(), after->bytes().begin(), after->bytes().end()));
}

}  // namespace
}  // namespace gpupool::fatbin::test
