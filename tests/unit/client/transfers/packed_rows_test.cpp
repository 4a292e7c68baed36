// What a server may request of named memory: only given names, and only rows within the memory, whatever numbers it
// sends.
#include "client/core/transfers/packed_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "client/core/graphs/graph_hosts.h"
#include "protocol/calls/graph_node.h"

namespace gpupool::test {
namespace {

using client::GraphHosts;
using client::PackedRows;
using codec::GraphCopyNotice;
using Use = GraphHosts::Use;

void function(void*) {}
void other_function(void*) {}

TEST(GraphHostsOfTheClient, NameTheSameObjectOnce) {
    GraphHosts hosts;
    int argument = 0;
    const auto first = hosts.name_function({function, &argument});
    EXPECT_EQ(first, 1u) << "zero is no valid name";
    EXPECT_EQ(hosts.name_function({function, &argument}), first);
    const auto second = hosts.name_function({function, nullptr}),
               third = hosts.name_function({other_function, nullptr});
    EXPECT_NE(second, first);
    EXPECT_NE(third, second);
    EXPECT_EQ(hosts.function(first)->argument, &argument);
    EXPECT_EQ(hosts.function(third)->function, other_function);
}

TEST(GraphHostsOfTheClient, NamePlaceSizeAndUseOfMemory) {
    GraphHosts hosts;
    std::byte memory[16];
    const auto whole = hosts.name_memory({memory, 16, Use::read}), half = hosts.name_memory({memory, 8, Use::read}),
               written = hosts.name_memory({memory, 16, Use::write});
    EXPECT_NE(whole, half);
    EXPECT_NE(whole, written) << "memory that is read may not be written";
    EXPECT_EQ(hosts.name_memory({memory, 16, Use::write}), written);
    EXPECT_EQ(hosts.memory(half)->bytes, 8u);
    EXPECT_EQ(hosts.memory(whole)->use, Use::read);
    EXPECT_EQ(hosts.memory(written)->use, Use::write);
}

TEST(GraphHostsOfTheClient, KnowNoOtherNames) {
    GraphHosts hosts;
    std::byte memory[16];
    hosts.name_memory({memory, 16, Use::read});
    for (const std::uint64_t name : {std::uint64_t{0}, std::uint64_t{2}, ~std::uint64_t{0}}) {
        EXPECT_FALSE(hosts.memory(name)) << name;
        EXPECT_FALSE(hosts.function(name)) << name;
    }
    EXPECT_FALSE(hosts.function(1)) << "functions and memory have their own names";
}

TEST(HostMemoryNames, AreNoValidAddresses) {
    for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{77}, kMaxHostMemoryNames - 1}) {
        const std::uint64_t name = host_memory_name(number);
        EXPECT_TRUE(is_host_memory_name(name));
        EXPECT_EQ(host_memory_number(name), number);
        EXPECT_FALSE(is_host_memory_name(name + 1));
        EXPECT_FALSE(is_host_memory_name(name + 0x800));
    }
    EXPECT_FALSE(is_host_memory_name(kHostMemoryNames - 0x1000));
    EXPECT_FALSE(is_host_memory_name(host_memory_name(kMaxHostMemoryNames)));
    EXPECT_FALSE(is_host_memory_name(0));
    EXPECT_FALSE(is_host_memory_name(~std::uint64_t{0xfff}));
}

// Two slices of three rows of four bytes, within rows of ten and slices of four rows; one row and two bytes in.
constexpr GraphCopyNotice kShaped{0, 1, 2, 1, 0, 10, 4, 4, 3, 2};

TEST(PackedRowsOfACopy, AreGatheredAndScattered) {
    std::array<std::byte, 80> memory{};
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = static_cast<std::byte>(i);
    }
    PackedRows rows;
    ASSERT_TRUE(rows.describe(kShaped, {memory.data(), memory.size(), Use::read}));
    EXPECT_FALSE(rows.contiguous());
    ASSERT_EQ(rows.bytes(), 24u);
    const auto packed = rows.packed();
    ASSERT_EQ(packed.size(), 24u);
    const int begins[] = {12, 22, 32, 52, 62, 72};
    for (std::size_t row = 0; row < 6; ++row) {
        for (std::size_t x = 0; x < 4; ++x) {
            EXPECT_EQ(static_cast<int>(packed[row * 4 + x]), begins[row] + static_cast<int>(x));
        }
    }
    for (std::size_t part = 1; part <= packed.size(); ++part) {  // split at any size
        std::array<std::byte, 80> back{};
        ASSERT_TRUE(rows.describe(kShaped, {back.data(), back.size(), Use::write}));
        for (std::size_t offset = 0; offset < packed.size(); offset += part) {
            rows.scatter(offset, std::span(packed).subspan(offset, std::min(part, packed.size() - offset)));
        }
        for (std::size_t i = 0; i < back.size(); ++i) {
            const bool within = std::any_of(std::begin(begins), std::end(begins), [&](int begin) {
                return static_cast<int>(i) >= begin && static_cast<int>(i) < begin + 4;
            });
            EXPECT_EQ(back[i], within ? memory[i] : std::byte{0}) << i << " in parts of " << part;
        }
    }
}

TEST(PackedRowsOfACopy, AreOnePieceWhenThereIsOneRow) {
    std::array<std::byte, 32> memory{};
    PackedRows rows;
    ASSERT_TRUE(rows.describe({0, 1, 4, 0, 0, 28, 1, 24, 1, 1}, {memory.data(), memory.size(), Use::read}));
    EXPECT_TRUE(rows.contiguous());
    EXPECT_EQ(rows.place(), memory.data() + 4);
    EXPECT_EQ(rows.as_span().size(), 24u);
}

TEST(PackedRowsOfACopy, LieCompletelyWithinTheirMemory) {
    std::array<std::byte, 80> memory{};
    PackedRows rows;
    EXPECT_TRUE(rows.describe(kShaped, {memory.data(), 76, Use::read}));
    EXPECT_FALSE(rows.describe(kShaped, {memory.data(), 75, Use::read}));
    const auto refused = [&](auto change) {
        GraphCopyNotice notice = kShaped;
        change(notice);
        return !rows.describe(notice, {memory.data(), 76, Use::read});
    };
    EXPECT_TRUE(refused([](auto& n) { n.x_bytes = 3; }));
    EXPECT_TRUE(refused([](auto& n) { n.y = 2; }));
    EXPECT_TRUE(refused([](auto& n) { n.z = 1; }));
    EXPECT_TRUE(refused([](auto& n) { n.pitch_bytes = 11; }));
    EXPECT_TRUE(refused([](auto& n) { n.height = 5; }));
    EXPECT_TRUE(refused([](auto& n) { n.width_bytes = 5; }));
    EXPECT_TRUE(refused([](auto& n) { n.rows = 4; }));
    EXPECT_TRUE(refused([](auto& n) { n.slices = 3; }));
    EXPECT_TRUE(refused([](auto& n) { n.width_bytes = 0; }));
    EXPECT_TRUE(refused([](auto& n) { n.rows = 0; }));
    EXPECT_TRUE(refused([](auto& n) { n.slices = 0; }));
    EXPECT_FALSE(refused([](auto&) {}));
}

// Overlapping rows add up to more data than there is memory.
TEST(PackedRowsOfACopy, AreAtMostAsLargeAsTheMemory) {
    std::array<std::byte, 64> memory{};
    PackedRows rows;
    const client::GraphHosts::Memory whole{memory.data(), memory.size(), Use::read};
    EXPECT_FALSE(rows.describe({0, 1, 0, 0, 0, 1, 1, 32, 33, 1}, whole));
    EXPECT_FALSE(rows.describe({0, 1, 0, 0, 0, 0, 1, 1, 1u << 20, 1}, whole)) << "without a pitch";
    EXPECT_FALSE(rows.describe({0, 1, 0, 0, 0, 1, 0, 1, 1, 1u << 20}, whole)) << "without a height";
}

// Numbers whose products overflow to small values.
TEST(PackedRowsOfACopy, AreRefusedWhenTheirNumbersOverflow) {
    std::array<std::byte, 64> memory{};
    PackedRows rows;
    const client::GraphHosts::Memory whole{memory.data(), memory.size(), Use::read};
    constexpr std::uint64_t kMax = 1ull << 46;
    // (z * height + y + rows - 1) * pitch is 2^128 + 2^36 - 2^36, so the last row would seem to be the first.
    EXPECT_FALSE(rows.describe({0, 1, 0, 0, kMax, 1ull << 36, kMax, 1, 1, 1}, whole));
    EXPECT_FALSE(rows.describe({0, 1, 0, 0, kMax, kMax, 1ull << 36, 1, 1, 1}, whole));
    EXPECT_FALSE(rows.describe({0, 1, 0, kMax - 1, kMax - 1, 1ull << 36, kMax, 1, 2, 1}, whole));
    for (int place = 0; place < 8; ++place) {
        for (const std::uint64_t value : {kMax, kMax + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
            GraphCopyNotice notice{0, 1, 0, 0, 0, 1, 1, 1, 1, 1};
            std::uint64_t* const fields[] = {&notice.x_bytes, &notice.y,           &notice.z,    &notice.pitch_bytes,
                                             &notice.height,  &notice.width_bytes, &notice.rows, &notice.slices};
            *fields[place] = value;
            const bool harmless = (place == 3 || place == 4) && value <= kMax;  // with one row they have no effect
            EXPECT_EQ(rows.describe(notice, whole), harmless) << place << ' ' << value;
        }
    }
}

}  // namespace
}  // namespace gpupool::test
