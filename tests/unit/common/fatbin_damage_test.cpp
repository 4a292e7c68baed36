// Hostile input: truncated, with false sizes, with random bit flips. AddressSanitizer detects accesses out of bounds.
#include <gtest/gtest.h>

#include <random>

#include "common/fatbin/select.h"
#include "common/fatbin/unpack.h"
#include "tests/unit/common/fixtures.h"

namespace gpupool::fatbin::test {
namespace {

template <class T>
void put(std::vector<std::byte>& target, std::size_t offset, T value) {
    std::memcpy(target.data() + offset, &value, sizeof value);
}

constexpr std::size_t kFirstEntry = kContainerHeaderBytes;

// Reads everything there is to read; it need only return.
void read_all(Bytes bytes) {
    auto image = inspect(bytes);
    if (!image) {
        return;
    }
    auto entries = image_entries(*image);
    if (!entries) {
        return;
    }
    for (const Entry& entry : *entries) {
        (void)unpack(entry, 16u << 20);
    }
    (void)repack(select(*entries, {9, 0}));
}

TEST(Damage, EveryTruncationIsRefused) {
    const auto file = fixture("size.fatbin");
    for (std::size_t size = 0; size < file.size(); size += size < 256 ? 1 : 97) {
        const std::vector<std::byte> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_FALSE(container_entries(cut)) << size;
        read_all(cut);
    }
}

TEST(Damage, TruncatedCubinIsRefused) {
    const auto file = fixture("kernels.cubin");
    for (std::size_t size : {std::size_t{4}, std::size_t{63}, file.size() / 2, file.size() - 1}) {
        EXPECT_FALSE(inspect(Bytes(file).first(size))) << size;
    }
}

TEST(Damage, TextNeedsATerminator) {
    const auto file = fixture("kernels.ptx");
    EXPECT_FALSE(inspect(Bytes(file).first(file.size() - 1)));
    EXPECT_FALSE(inspect(Bytes()));
}

TEST(Damage, WrapperIsRefused) {
    const Wrapper wrapper{kWrapperMagic, kWrapperVersionSingle, nullptr, nullptr};
    auto image = inspect(std::as_bytes(std::span(&wrapper, 1)));
    ASSERT_FALSE(image);
    EXPECT_EQ(image.error().code, ErrorCode::invalid_input);
}

TEST(Damage, ClaimedSizesAreChecked) {
    auto container = make_container({{Kind::ptx, 80, 0, "text"}});
    put(container, container_field::kEntriesBytes, ~std::uint64_t{0});
    EXPECT_FALSE(container_entries(container));

    container = make_container({{Kind::ptx, 80, 0, "text"}});
    put(container, kFirstEntry + entry_field::kPayloadBytes, ~std::uint64_t{0} - 0x3F);
    EXPECT_FALSE(container_entries(container));

    container = make_container({{Kind::ptx, 80, 0, "text"}});
    put(container, kFirstEntry + entry_field::kPayloadBytes, std::uint64_t{16});
    EXPECT_FALSE(container_entries(container));

    container = make_container({{Kind::ptx, 80, 0, "text"}});
    put(container, kFirstEntry + entry_field::kHeaderBytes, std::uint32_t{0});
    EXPECT_FALSE(container_entries(container));

    container = make_container({{Kind::ptx, 80, flag::kZstd, "text"}});
    put(container, kFirstEntry + entry_field::kCompressedBytes, std::uint32_t{9});
    EXPECT_FALSE(container_entries(container));
}

Entry only_entry(Bytes container) {
    auto entries = container_entries(container);
    return entries && entries->size() == 1 ? entries->front() : Entry{};
}

TEST(Damage, ImpossibleUnpackedSizeIsRefused) {
    // Four LZ4 bytes cannot expand to a gigabyte, and an invalid frame states no size.
    const auto lz4 = make_container({{Kind::ptx, 80, flag::kLz4, "text", 4, kMaxUnpackedBytes}});
    auto contents = unpack(only_entry(lz4));
    ASSERT_FALSE(contents);
    EXPECT_EQ(contents.error().code, ErrorCode::invalid_input);
    const auto zstd = make_container({{Kind::ptx, 80, flag::kZstd, "text", 4, kMaxUnpackedBytes}});
    EXPECT_FALSE(unpack(only_entry(zstd)));
    const auto huge = make_container({{Kind::ptx, 80, flag::kZstd, "text", 4, kMaxUnpackedBytes + 1}});
    contents = unpack(only_entry(huge));
    ASSERT_FALSE(contents);
    EXPECT_EQ(contents.error().code, ErrorCode::limit_exceeded);
}

TEST(Damage, FalseUnpackedSizeIsDetected) {
    for (const char* name : {"size.fatbin", "speed.fatbin"}) {
        const auto file = fixture(name);
        auto entries = container_entries(file);
        ASSERT_TRUE(entries);
        for (Entry entry : *entries) {
            if (!entry.compressed) {
                continue;
            }
            entry.unpacked_bytes += 8;
            EXPECT_FALSE(unpack(entry)) << name;
            entry.unpacked_bytes -= 16;
            EXPECT_FALSE(unpack(entry)) << name;
        }
    }
}

TEST(Damage, TooManyEntriesAreRefused) {
    const std::vector<MadeEntry> many(kMaxEntries + 1, MadeEntry{Kind::ptx, 80, 0, ""});
    auto entries = container_entries(make_container(many));
    ASSERT_FALSE(entries);
    EXPECT_EQ(entries.error().code, ErrorCode::limit_exceeded);
}

TEST(Damage, RandomFlipsDoNotCrash) {
    std::mt19937 random(20240607);
    for (const char* name : {"size.fatbin", "speed.fatbin", "kernels.cubin"}) {
        const auto file = fixture(name);
        for (int round = 0; round < 300; ++round) {
            auto damaged = file;
            for (int flips = 0; flips < 8; ++flips) {
                // Half of the flips hit the headers.
                const std::size_t range = flips % 2 == 0 ? std::min<std::size_t>(file.size(), 96) : file.size();
                damaged[random() % range] = static_cast<std::byte>(random());
            }
            read_all(damaged);
        }
    }
}

}  // namespace
}  // namespace gpupool::fatbin::test
