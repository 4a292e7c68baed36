// Compares the address window with a naive model, and tests the map of allocations by address.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "client/core/memory/address_window.h"
#include "client/core/memory/memory_map.h"

namespace gpupool::test {
namespace {

using client::AddressWindow;
using client::MemoryMap;
using client::MemoryRange;

constexpr std::uint64_t kBase = 0x500000000000;
constexpr std::uint64_t kUnit = AddressWindow::kGranularity;

TEST(Window, RandomOperationsAgreeWithANaiveModel) {
    constexpr std::size_t kUnits = 256;
    AddressWindow window;
    window.keep({}, kBase, kUnits * kUnit);
    std::vector<bool> used(kUnits);
    std::map<std::uint64_t, std::size_t> taken;
    std::mt19937 random(3);
    const auto is_free = [&](std::size_t first, std::size_t count) {
        for (std::size_t i = first; i < first + count; ++i) {
            if (i >= kUnits || used[i]) {
                return false;
            }
        }
        return true;
    };
    for (int step = 0; step < 20'000; ++step) {
        if (random() % 2 == 0) {
            const std::size_t units = 1 + random() % 12;
            const std::uint64_t alignment = kUnit << random() % 4;
            const std::size_t place = random() % kUnits;
            const std::uint64_t wanted = random() % 3 == 0 ? kBase + place * kUnit : 0;
            const std::uint64_t at = window.allocate(units * kUnit - random() % kUnit, alignment, wanted);
            if (at == 0) {
                for (std::size_t i = 0; i < kUnits; ++i) {
                    ASSERT_FALSE((kBase + i * kUnit) % alignment == 0 && is_free(i, units)) << "there was room";
                }
                continue;
            }
            const std::size_t first = (at - kBase) / kUnit;
            ASSERT_EQ(at % alignment, 0u);
            ASSERT_TRUE(is_free(first, units)) << "handed out twice";
            if (wanted != 0 && wanted % alignment == 0 && is_free(place, units)) {
                ASSERT_EQ(at, wanted) << "the wanted place was free";
            }
            std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(first), units, true);
            taken[at] = units;
        } else if (!taken.empty()) {
            auto it = taken.begin();
            std::advance(it, random() % taken.size());
            window.free(it->first, it->second * kUnit);
            std::fill_n(used.begin() + static_cast<std::ptrdiff_t>((it->first - kBase) / kUnit), it->second, false);
            taken.erase(it);
        }
    }
}

TEST(Window, AllocationsBeyondTheWindowFail) {
    AddressWindow none;
    EXPECT_EQ(none.allocate(1), 0u);
    EXPECT_FALSE(none.contains(0));
    AddressWindow window;
    window.keep({}, kBase, 4 * kUnit);
    EXPECT_EQ(window.allocate(0), 0u);
    EXPECT_EQ(window.allocate(4 * kUnit + 1), 0u);
    EXPECT_EQ(window.allocate(~std::uint64_t{0}), 0u);
    EXPECT_EQ(window.allocate(kUnit, kUnit, kBase + 4 * kUnit), kBase)
        << "a wanted place outside of the window is ignored";
    EXPECT_TRUE(window.contains(kBase));
    EXPECT_TRUE(window.contains(kBase + 4 * kUnit - 1));
    EXPECT_FALSE(window.contains(kBase + 4 * kUnit));
    EXPECT_FALSE(window.contains(kBase - 1));
}

TEST(Window, OnlyOfferedRangesMayBeChosen) {
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> offered{{kBase, 4 * kUnit}, {2 * kBase, 8 * kUnit}};
    EXPECT_TRUE(AddressWindow::is_offered(offered, kBase, 4 * kUnit));
    EXPECT_TRUE(AddressWindow::is_offered(offered, 2 * kBase, kUnit));
    EXPECT_FALSE(AddressWindow::is_offered(offered, kBase, 8 * kUnit));
    EXPECT_FALSE(AddressWindow::is_offered(offered, kBase + kUnit, kUnit));
    EXPECT_FALSE(AddressWindow::is_offered(offered, kBase, 0));
    EXPECT_FALSE(AddressWindow::is_offered(offered, kBase, kUnit - 1));
    EXPECT_FALSE(AddressWindow::is_offered(offered, 0, ~0ull));
    EXPECT_FALSE(AddressWindow::is_offered({}, kBase, kUnit));
}

TEST(Window, ReservedRangesAreReleased) {
    const auto first = AddressWindow::reserve_candidates();
    ASSERT_FALSE(first.empty());
    const auto meanwhile = AddressWindow::reserve_candidates();
    for (const auto& [base, bytes] : meanwhile) {
        for (const auto& [taken, size] : first) {
            EXPECT_TRUE(base >= taken + size || taken >= base + bytes) << "reserved twice";
        }
    }
    AddressWindow::abandon(meanwhile);
    AddressWindow::abandon(first);
    const auto again = AddressWindow::reserve_candidates();
    EXPECT_EQ(again, first);
    AddressWindow::abandon(again);
}

MemoryRange range(std::uint64_t base, std::uint64_t bytes, client::ContextState* context = nullptr) {
    MemoryRange added;
    added.base = base;
    added.bytes = bytes;
    added.context = context;
    return added;
}

TEST(Window, OnlyTheProgramsReservationsAreReleased) {
    AddressWindow window;
    window.keep({}, kBase, 16 * kUnit);
    const std::uint64_t heap = window.allocate(2 * kUnit);
    const std::uint64_t first = window.reserve(4 * kUnit, kUnit, 0), second = window.reserve(2 * kUnit, kUnit, 0);
    ASSERT_EQ(first, heap + 2 * kUnit);
    ASSERT_EQ(second, first + 4 * kUnit);
    EXPECT_FALSE(window.unreserve(heap, 2 * kUnit));
    EXPECT_FALSE(window.unreserve(first, 2 * kUnit));
    EXPECT_FALSE(window.unreserve(first + kUnit, kUnit));
    EXPECT_FALSE(window.unreserve(first, 6 * kUnit));
    EXPECT_FALSE(window.unreserve(first, 0));
    EXPECT_FALSE(window.is_reserved(heap, kUnit));
    EXPECT_FALSE(window.is_reserved(heap + kUnit, 2 * kUnit));
    EXPECT_TRUE(window.is_reserved(first + kUnit, 5 * kUnit)) << "adjacent reservations count as one range";
    EXPECT_FALSE(window.is_reserved(first + kUnit, 6 * kUnit));
    EXPECT_FALSE(window.is_reserved(first, ~std::uint64_t{0}));
    EXPECT_TRUE(window.unreserve(first, 4 * kUnit));
    EXPECT_FALSE(window.unreserve(first, 4 * kUnit));
    EXPECT_FALSE(window.is_reserved(first, kUnit));
    EXPECT_EQ(window.allocate(4 * kUnit), first) << "free again";
}

TEST(Memory, IsFoundByAnyRangeWithinIt) {
    MemoryMap map;
    map.add({1000, 100, client::MemoryKind::registered});
    map.add({2000, 100, client::MemoryKind::pinned});
    EXPECT_FALSE(map.find_within(900, 100));
    EXPECT_TRUE(map.find_within(900, 101));
    EXPECT_TRUE(map.find_within(1050, 1));
    EXPECT_TRUE(map.find_within(500, 1000)) << "a range around it";
    EXPECT_FALSE(map.find_within(1100, 900));
    EXPECT_EQ(map.find_within(1100, 901)->base, 2000u);
    EXPECT_FALSE(map.find_within(3000, ~std::uint64_t{0}));
}

TEST(Memory, IsFoundExactlyByItsAddresses) {
    MemoryMap map;
    map.add(range(0x1000, 0x100));
    map.add(range(0x1100, 0x10));
    EXPECT_FALSE(map.find(0xfff));
    EXPECT_EQ(map.find(0x1000)->base, 0x1000u);
    EXPECT_EQ(map.find(0x10ff)->base, 0x1000u);
    EXPECT_EQ(map.find(0x1100)->base, 0x1100u);
    EXPECT_EQ(map.find(0x110f)->base, 0x1100u);
    EXPECT_FALSE(map.find(0x1110));
    EXPECT_FALSE(map.find(~std::uint64_t{0}));
    EXPECT_NE(map.find(0x1000)->id, map.find(0x1100)->id);
    EXPECT_FALSE(map.remove(0x1001)) << "it is removed only by its first address";
    EXPECT_EQ(map.remove(0x1000)->bytes, 0x100u);
    EXPECT_FALSE(map.find(0x1000));
    EXPECT_FALSE(map.remove(0x1000));
}

TEST(Memory, OfAContextEndsWithIt) {
    MemoryMap map;
    auto* const one = reinterpret_cast<client::ContextState*>(0x10);
    auto* const two = reinterpret_cast<client::ContextState*>(0x20);
    map.add(range(0x1000, 1, one));
    map.add(range(0x2000, 1, two));
    map.add(range(0x3000, 1, one));
    client::MemoryRange pooled = range(0x4000, 1, one);
    pooled.kind = client::MemoryKind::pool;
    map.add(pooled);
    EXPECT_EQ(map.end_context(one).size(), 2u);
    EXPECT_FALSE(map.find(0x1000));
    EXPECT_TRUE(map.find(0x2000));
    ASSERT_TRUE(map.find(0x4000)) << "memory of a pool outlives it";
    EXPECT_EQ(map.find(0x4000)->context, nullptr);
    EXPECT_TRUE(map.end_context(one).empty());
}

TEST(Memory, SyncMemopsBelongToARange) {
    MemoryMap map;
    map.add(range(0x1000, 0x100));
    EXPECT_FALSE(map.set_sync_memops(0xfff, true));
    EXPECT_FALSE(map.set_sync_memops(0x1100, true));
    EXPECT_TRUE(map.set_sync_memops(0x1080, true));
    EXPECT_TRUE(map.find(0x1000)->sync_memops);
}

TEST(Memory, RandomRangesAgreeWithANaiveModel) {
    MemoryMap map;
    std::map<std::uint64_t, std::uint64_t> model;
    std::mt19937 random(11);
    for (int step = 0; step < 5000; ++step) {
        const std::uint64_t base = 16 * (random() % 500), bytes = 1 + random() % 16;
        if (random() % 2 == 0) {
            map.add(range(base, bytes));
            model[base] = bytes;
        } else {
            EXPECT_EQ(map.remove(base).has_value(), model.erase(base) == 1);
        }
        const std::uint64_t address = random() % 8200;
        const auto it = model.upper_bound(address);
        const bool inside = it != model.begin() && address < std::prev(it)->first + std::prev(it)->second;
        ASSERT_EQ(map.find(address).has_value(), inside) << address;
    }
}

}  // namespace
}  // namespace gpupool::test
