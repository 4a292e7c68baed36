#include "client/core/memory/address_search.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace gpupool::client {
namespace {

constexpr AddressBounds kBounds = {0x7f0000001000, 0x7f0000003000};

std::vector<std::uint64_t> found_in(const std::vector<std::byte>& data, std::uint64_t destination) {
    std::vector<std::uint64_t> found;
    find_addresses(data, destination, kBounds, [&](std::uint64_t address) { found.push_back(address); });
    return found;
}

void put(std::vector<std::byte>& data, std::size_t offset, std::uint64_t word) {
    std::memcpy(data.data() + offset, &word, sizeof word);
}

TEST(AddressSearch, FindsTheBoundsAndNothingBesidesThem) {
    std::vector<std::byte> data(32);
    put(data, 0, kBounds.begin - 1);
    put(data, 8, kBounds.begin);
    put(data, 16, kBounds.end - 1);
    put(data, 24, kBounds.end);
    EXPECT_EQ(found_in(data, 0), (std::vector<std::uint64_t>{kBounds.begin, kBounds.end - 1}));
}

TEST(AddressSearch, FindsWordsAnywhereInLongAndShortData) {
    for (const std::size_t words : {1u, 7u, 8u, 9u, 64u, 65u, 1000u}) {
        for (std::size_t at = 0; at<words; at += words> 100 ? 37 : 1) {
            std::vector<std::byte> data(words * 8 + 5);
            put(data, at * 8, kBounds.begin + at);
            EXPECT_EQ(found_in(data, 4096), std::vector<std::uint64_t>{kBounds.begin + at})
                << words << " words, " << at;
        }
    }
}

TEST(AddressSearch, AlignsWordsWithTheDestination) {
    for (std::size_t shift = 0; shift < 8; ++shift) {
        std::vector<std::byte> data(40);
        const std::size_t first = (8 - shift) % 8;
        put(data, first, kBounds.begin + 1);
        EXPECT_EQ(found_in(data, 0x1000 + shift).size(), 1u) << shift;
        EXPECT_EQ(found_in(data, 0x1000 + shift + 1).size(), 0u) << shift;
    }
}

TEST(AddressSearch, NothingIsFoundInLessThanAWordOrWithoutBounds) {
    std::vector<std::byte> data(7);
    EXPECT_TRUE(found_in(data, 0).empty());
    data.resize(8);
    bool any = false;
    find_addresses(data, 0, AddressBounds{}, [&](std::uint64_t) { any = true; });
    EXPECT_FALSE(any);
}

}  // namespace
}  // namespace gpupool::client
