#include "protocol/wire/landed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace gpupool::wire {
namespace {

TEST(LandedTest, AdvancesToTheFirstGap) {
    Landed landed;
    EXPECT_EQ(landed.up_to(), 0u);
    EXPECT_TRUE(landed.add(1));
    EXPECT_EQ(landed.up_to(), 1u);
    EXPECT_TRUE(landed.add(3));
    EXPECT_TRUE(landed.add(5));
    EXPECT_TRUE(landed.add(4));
    EXPECT_EQ(landed.up_to(), 1u);
    EXPECT_TRUE(landed.add(2));
    EXPECT_EQ(landed.up_to(), 5u);
}

TEST(LandedTest, NumberCountsOnce) {
    Landed landed;
    EXPECT_FALSE(landed.add(0));
    EXPECT_TRUE(landed.add(1));
    EXPECT_FALSE(landed.add(1));
    for (const std::uint64_t number : {4u, 5u, 6u, 9u}) {
        EXPECT_TRUE(landed.add(number));
    }
    for (const std::uint64_t number : {4u, 5u, 6u, 9u}) {
        EXPECT_FALSE(landed.add(number));
    }
    EXPECT_EQ(landed.up_to(), 1u);
}

TEST(LandedTest, AnyOrderIsComplete) {
    std::mt19937 random(1);
    for (int round = 0; round < 50; ++round) {
        std::vector<std::uint64_t> numbers(300);
        std::iota(numbers.begin(), numbers.end(), 1);
        std::shuffle(numbers.begin(), numbers.end(), random);
        Landed landed;
        std::vector<bool> seen(numbers.size() + 2);
        for (const auto number : numbers) {
            ASSERT_TRUE(landed.add(number));
            seen[number] = true;
            const auto expected = std::find(seen.begin() + 1, seen.end(), false) - seen.begin() - 1;
            ASSERT_EQ(landed.up_to(), static_cast<std::uint64_t>(expected));
        }
    }
}

TEST(LandedTest, GapsAreLimitedUntilFilled) {
    Landed landed;
    for (std::size_t i = 1; i <= Landed::kMaxHoles; ++i) {
        ASSERT_TRUE(landed.add(2 * i));
    }
    EXPECT_FALSE(landed.add(2 * Landed::kMaxHoles + 2));
    EXPECT_TRUE(landed.add(3));
    EXPECT_TRUE(landed.add(2 * Landed::kMaxHoles + 2));
}

}  // namespace
}  // namespace gpupool::wire
