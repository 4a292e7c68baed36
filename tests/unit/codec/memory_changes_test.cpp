#include "protocol/codec/memory_changes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

namespace gpupool::codec {
namespace {

using Record = std::vector<std::byte>;

// One side's copy of a shared block; both sides use the same `address` for it.
struct Side {
    Side(std::uint64_t at, std::size_t size) : storage(size + 16), baseline(size) {
        auto place = reinterpret_cast<std::uintptr_t>(storage.data());
        place += (at % 8 + 8 - place % 8) % 8;  // with the same alignment as the address
        block = {at, reinterpret_cast<std::byte*>(place), baseline.data(), size};
    }
    std::vector<Record> changes() {
        std::vector<Record> records;
        find_changes(block, [&](std::span<const std::byte> r) { records.emplace_back(r.begin(), r.end()); });
        return records;
    }
    bool apply(std::span<const std::byte> record) {
        return apply_changes(record, [&](std::uint64_t at) -> const SharedBlock* {
            return at >= block.address && at - block.address < block.bytes ? &block : nullptr;
        });
    }
    std::byte& operator[](std::size_t i) { return block.memory[i]; }
    [[nodiscard]] std::vector<std::byte> content() const { return {block.memory, block.memory + block.bytes}; }

    std::vector<std::byte> storage, baseline;
    SharedBlock block;
};

constexpr std::byte operator""_b(unsigned long long value) {
    return static_cast<std::byte>(value);
}

TEST(MemoryChanges, UnchangedMemoryIsNotSent) {
    Side side(0x1000, 10000);
    EXPECT_TRUE(side.changes().empty());
    side[5] = 1_b;
    EXPECT_EQ(side.changes().size(), 1u);
    EXPECT_TRUE(side.changes().empty());
}

// At every alignment of the block's beginning and end.
TEST(MemoryChanges, ChangesAreAppliedOnTheOtherSide) {
    std::mt19937 random(7);
    for (std::uint64_t address = 0x10000; address < 0x10010; ++address) {
        for (const std::size_t bytes : {1, 3, 8, 9, 17, 4095, 4096, 4097, 20000}) {
            Side here(address, bytes), there(address, bytes);
            for (int round = 0; round < 5; ++round) {
                for (int i = 0; i < 20; ++i) {
                    here[random() % bytes] = static_cast<std::byte>(random());
                }
                here[0] = static_cast<std::byte>(random());
                here[bytes - 1] = static_cast<std::byte>(random());
                for (const Record& record : here.changes()) {
                    ASSERT_TRUE(there.apply(record));
                }
                ASSERT_EQ(there.content(), here.content());
                ASSERT_TRUE(there.changes().empty()) << "applied changes are not sent back";
            }
        }
    }
}

TEST(MemoryChanges, BothSidesWriteNeighbouringBytes) {
    Side here(0x2003, 5000), there(0x2003, 5000);
    for (std::size_t i = 0; i < 5000; ++i) {
        (i % 2 == 0 ? here : there)[i] = static_cast<std::byte>(i | 1);
    }
    const auto from_here = here.changes(), from_there = there.changes();
    for (const Record& record : from_here) {
        ASSERT_TRUE(there.apply(record));
    }
    for (const Record& record : from_there) {
        ASSERT_TRUE(here.apply(record));
    }
    EXPECT_EQ(here.content(), there.content());
    EXPECT_EQ(here[4], 5_b);
    EXPECT_EQ(here[5], 5_b);
}

TEST(MemoryChanges, FewChangesGiveShortRecords) {
    Side side(0x4000, 1 << 20);
    side[700'000] = 1_b;
    const auto records = side.changes();
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(records[0].size(), sizeof(ChangeHeader) + 1 + 1);
}

class Malformed : public testing::Test {
  protected:
    Malformed() {
        Side other(0x8004, 100);
        other[0] = other[50] = other[99] = 1_b;
        record_ = other.changes().at(0);
        std::memcpy(&header_, record_.data(), sizeof header_);
    }
    bool apply_header() {
        std::memcpy(record_.data(), &header_, sizeof header_);
        return side_.apply(record_);
    }
    void TearDown() override { EXPECT_EQ(side_.content(), std::vector<std::byte>(100)); }

    Side side_{0x8004, 100};
    Record record_;
    ChangeHeader header_{};
};

TEST_F(Malformed, TruncatedAtEveryLength) {
    for (std::size_t bytes = 0; bytes < record_.size(); ++bytes) {
        EXPECT_FALSE(side_.apply(std::span(record_).first(bytes))) << bytes;
    }
}
TEST_F(Malformed, AnotherAddress) {
    for (const std::int64_t offset : {-0x8000, -16, -8, 8, 16, 0x1000}) {
        const ChangeHeader kept = header_;
        header_.address += static_cast<std::uint64_t>(offset);
        EXPECT_FALSE(apply_header()) << offset;
        header_ = kept;
    }
    header_.address = ~std::uint64_t{7};
    EXPECT_FALSE(apply_header());
}
TEST_F(Malformed, NotAligned) {
    header_.address += 1;
    EXPECT_FALSE(apply_header());
}
TEST_F(Malformed, FalseSizes) {
    const ChangeHeader kept = header_;
    for (const std::uint32_t bytes : {0u, 4u, 8u, 96u, 4096u, 4104u, ~7u, ~0u}) {
        header_.window_bytes = bytes;
        EXPECT_FALSE(apply_header()) << bytes;
        header_ = kept;
        header_.changed_bytes = bytes;
        EXPECT_FALSE(apply_header()) << bytes;
        header_ = kept;
    }
}
TEST_F(Malformed, BytesOutsideTheBlock) {
    record_[sizeof header_] |= 1_b;  // the byte at 0x8000, which lies before the block
    EXPECT_FALSE(side_.apply(record_));
    header_.changed_bytes += 1;
    record_.push_back(9_b);
    EXPECT_FALSE(apply_header());
}

// A word that the other side wrote is never half visible.
TEST(MemoryChanges, WordsAreWrittenWhole) {
    Side here(0x6000, 64), there(0x6000, 64);
    std::atomic<bool> done{false};
    auto* const seen = reinterpret_cast<std::uint64_t*>(there.block.memory);
    std::uint64_t torn = 0;
    std::thread reader([&] {
        while (!done.load()) {
            const std::uint64_t value = __atomic_load_n(seen, __ATOMIC_RELAXED);
            torn += (value & 0xffffffff) != value >> 32 ? 1 : 0;
        }
    });
    for (std::uint64_t i = 0; i < 20000; ++i) {
        const std::uint64_t word = i * 0x10001 % 0xffffffff;
        __atomic_store_n(reinterpret_cast<std::uint64_t*>(here.block.memory), word << 32 | word, __ATOMIC_RELAXED);
        for (const Record& record : here.changes()) {
            ASSERT_TRUE(there.apply(record));
        }
    }
    done = true;
    reader.join();
    EXPECT_EQ(torn, 0u);
}

}  // namespace
}  // namespace gpupool::codec
