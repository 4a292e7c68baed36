// Reads nvcc's real output: forms, lengths, entries, contents.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/fatbin/image.h"
#include "common/fatbin/unpack.h"
#include "tests/unit/common/fixtures.h"

namespace gpupool::fatbin::test {
namespace {

class CompressMode : public testing::TestWithParam<const char*> {};

TEST_P(CompressMode, EntriesAreTheRequestedOnes) {
    const auto file = fixture(std::string(GetParam()) + ".fatbin");
    auto image = inspect(file);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->form, Form::container);
    EXPECT_EQ(image->bytes.size(), file.size());
    auto entries = image_entries(*image);
    ASSERT_TRUE(entries) << entries.error().message;
    std::vector<std::pair<Kind, std::uint32_t>> seen;
    for (const Entry& entry : *entries) {
        seen.emplace_back(entry.kind, entry.arch);
    }
    std::sort(seen.begin(), seen.end());
    const std::vector<std::pair<Kind, std::uint32_t>> expected = {
        {Kind::ptx, 75}, {Kind::ptx, 90}, {Kind::cubin, 75}, {Kind::cubin, 80}, {Kind::cubin, 90}, {Kind::cubin, 100}};
    EXPECT_EQ(seen, expected);
}

TEST_P(CompressMode, ContentsAreComplete) {
    const auto file = fixture(std::string(GetParam()) + ".fatbin");
    auto entries = container_entries(file);
    ASSERT_TRUE(entries) << entries.error().message;
    for (const Entry& entry : *entries) {
        auto contents = unpack(entry);
        ASSERT_TRUE(contents) << contents.error().message;
        EXPECT_EQ(contents->bytes().size(), entry.unpacked_bytes);
        if (entry.kind == Kind::ptx) {
            EXPECT_NE(contents->text().find(".visible .entry mixed"), std::string_view::npos);
            // nvcc's text begins with empty lines; its first word is a directive.
            EXPECT_EQ(contents->text().substr(contents->text().find_first_not_of('\n'), 8), ".version");
            continue;
        }
        auto cubin = inspect(contents->bytes());
        ASSERT_TRUE(cubin) << cubin.error().message;
        EXPECT_EQ(cubin->form, Form::cubin);
        // Stored payloads are padded to eight, compressed ones state their exact size.
        EXPECT_LT(contents->bytes().size() - cubin->bytes.size(), entry.compressed ? 1u : 8u);
    }
}

TEST_P(CompressMode, FlagsGiveCompressionAndTarget) {
    const auto file = fixture(std::string(GetParam()) + ".fatbin");
    const auto entries = container_entries(file);
    ASSERT_TRUE(entries) << entries.error().message;
    const std::string mode = GetParam();
    for (const Entry& entry : *entries) {
        EXPECT_EQ((entry.flags & flag::kArchSpecific) != 0, entry.kind == Kind::cubin && entry.arch == 90);
        EXPECT_EQ((entry.flags & flag::kFamilySpecific) != 0, entry.arch == 100);
        const std::uint64_t how = entry.flags & (flag::kLz4 | flag::kZstd);
        // In modes "balance" (nvcc's default) and "speed" the compiler decides which cubins to compress.
        if (mode == "none" || mode == "size") {
            EXPECT_EQ(how, mode == "size" ? flag::kZstd : 0);
        } else if (entry.kind == Kind::ptx) {
            EXPECT_EQ(how, mode == "speed" ? flag::kLz4 : flag::kZstd);
        }
        EXPECT_EQ(entry.compressed, how != 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Nvcc, CompressMode, testing::Values("none", "size", "speed", "balance"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrustedImage, FollowsAWrapper) {
    const auto file = fixture("balance.fatbin");
    const Wrapper wrapper{kWrapperMagic, kWrapperVersionSingle, file.data(), nullptr};
    auto image = inspect_trusted(&wrapper);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->form, Form::wrapper);
    EXPECT_EQ(image->bytes.data(), file.data());
    EXPECT_EQ(image->bytes.size(), file.size());
    EXPECT_TRUE(image->prelinked.empty());
    auto entries = image_entries(*image);
    ASSERT_TRUE(entries);
    EXPECT_EQ(entries->size(), 6u);
}

TEST(TrustedImage, CollectsPrelinkedContainers) {
    const auto linked = fixture("none.fatbin");
    const auto first = fixture("size.fatbin");
    const auto second = fixture("speed.fatbin");
    const void* list[] = {first.data(), second.data(), nullptr};
    const Wrapper wrapper{kWrapperMagic, kWrapperVersionLinked, linked.data(), list};
    auto image = inspect_trusted(&wrapper);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->bytes.size(), linked.size());
    ASSERT_EQ(image->prelinked.size(), 2u);
    EXPECT_EQ(image->prelinked[0].size(), first.size());
    EXPECT_EQ(image->prelinked[1].data(), second.data());
}

TEST(TrustedImage, FileNameOfAVersionOneWrapperIsNotAList) {
    const auto file = fixture("none.fatbin");
    const Wrapper wrapper{kWrapperMagic, kWrapperVersionSingle, file.data(), const_cast<char*>("a.cu")};
    auto image = inspect_trusted(&wrapper);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_TRUE(image->prelinked.empty());
}

TEST(TrustedImage, FindsTheLengthOfBareForms) {
    for (const char* name : {"none.fatbin", "kernels.cubin", "kernels.ptx"}) {
        const auto file = fixture(name);
        auto image = inspect_trusted(file.data());
        ASSERT_TRUE(image) << name << ": " << image.error().message;
        EXPECT_EQ(image->bytes.size(), file.size()) << name;
        auto bounded = inspect(file);
        ASSERT_TRUE(bounded) << name << ": " << bounded.error().message;
        EXPECT_EQ(bounded->bytes.size(), file.size()) << name;
        EXPECT_EQ(bounded->form, image->form) << name;
    }
}

TEST(TrustedImage, TextMayBeShorterThanAMagic) {
    for (const char* text : {"", "\n", "//"}) {
        auto image = inspect_trusted(text);
        ASSERT_TRUE(image);
        EXPECT_EQ(image->form, Form::ptx);
        EXPECT_EQ(image->bytes.size(), std::strlen(text) + 1);
    }
}

TEST(TrustedImage, RefusesUnknownForms) {
    EXPECT_FALSE(inspect_trusted(nullptr));
    const Wrapper empty{kWrapperMagic, kWrapperVersionSingle, nullptr, nullptr};
    EXPECT_FALSE(inspect_trusted(&empty));
    const Wrapper astray{kWrapperMagic, kWrapperVersionSingle, "no container", nullptr};
    EXPECT_FALSE(inspect_trusted(&astray));
    const auto file = fixture("none.fatbin");
    const Wrapper newer{kWrapperMagic, 3, file.data(), nullptr};
    auto image = inspect_trusted(&newer);
    ASSERT_FALSE(image);
    EXPECT_EQ(image.error().code, ErrorCode::unsupported);
}

std::vector<std::byte> joined(std::initializer_list<const char*> names) {
    std::vector<std::byte> all;
    for (const char* name : names) {
        const auto file = fixture(name);
        all.insert(all.end(), file.begin(), file.end());
    }
    return all;
}

TEST(JoinedImage, FindsFollowingContainers) {
    auto all = joined({"none.fatbin", "size.fatbin", "speed.fatbin"});
    all.push_back(std::byte{0});
    auto image = inspect_joined(all);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->bytes.size(), fixture("none.fatbin").size());
    ASSERT_EQ(image->prelinked.size(), 2u);
    EXPECT_EQ(image->prelinked[0].size(), fixture("size.fatbin").size());
    EXPECT_EQ(image->prelinked[1].size(), fixture("speed.fatbin").size());
    EXPECT_EQ(image->prelinked[1].data() + image->prelinked[1].size() + 1, all.data() + all.size());
}

TEST(JoinedImage, RefusesATruncatedContainer) {
    auto all = joined({"none.fatbin", "size.fatbin"});
    all.pop_back();
    EXPECT_FALSE(inspect_joined(all));
}

TEST(JoinedImage, EndsBehindABareForm) {
    const auto all = joined({"kernels.cubin", "none.fatbin"});
    auto image = inspect_joined(all);
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_EQ(image->form, Form::cubin);
    EXPECT_TRUE(image->prelinked.empty());
}

TEST(BareImage, IsOneEntry) {
    const auto file = fixture("kernels.ptx");
    auto image = inspect(file);
    ASSERT_TRUE(image);
    auto entries = image_entries(*image);
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), 1u);
    EXPECT_EQ(entries->front().kind, Kind::ptx);
    auto contents = unpack(entries->front());
    ASSERT_TRUE(contents);
    EXPECT_EQ(contents->text().size() + 1, file.size());
}

}  // namespace
}  // namespace gpupool::fatbin::test
