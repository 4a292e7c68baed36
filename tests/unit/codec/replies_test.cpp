// Results: round trips, and replies that do not fit the request.
#include <cstring>

#include "tests/unit/codec/encode.h"

namespace gpupool::test {
namespace {

using Resolve = calls::gpFunctionResolve;

// Fills a worker's slots for a resolve, which has room for `capacity`, with results.
void fill(codec::Slots<Resolve>& slots, unsigned capacity, bool with_count) {
    CUfunction minted = handle<CUfunction>(codec::HandleKind::function, 3);
    ParameterLayout layout[8];
    unsigned count = 0;
    auto body =
        command<Resolve>(&minted, CUmodule{}, "k", layout, capacity, with_count ? &count : nullptr, kNoAttributes, 0u);
    ASSERT_TRUE(slots.read(body));
    for (unsigned i = 0; i < capacity; ++i) {
        slots.at<Resolve::layout>().object[i] = {i * 8, 4 + i};
    }
    slots.at<Resolve::count>().object = 42;
}

TEST(Replies, RoundTrip) {
    codec::Slots<Resolve> slots;
    fill(slots, 3, true);
    auto body = reply<Resolve>(slots);
    ParameterLayout layout[4] = {{}, {}, {}, {77, 88}};
    unsigned count = 0;
    ASSERT_TRUE(read_reply<Resolve>(body, nullptr, CUmodule{}, nullptr, layout, 3u, &count, kNoAttributes, 0u));
    EXPECT_EQ(count, 42u);
    EXPECT_EQ(layout[2].offset_bytes, 16u);
    EXPECT_EQ(layout[2].size_bytes, 6u);
    EXPECT_EQ(layout[3].offset_bytes, 77u) << "written behind the caller's array";
}

TEST(Replies, UnrequestedOutputsAreNotSent) {
    codec::Slots<Resolve> slots;
    fill(slots, 2, false);
    auto body = reply<Resolve>(slots);
    EXPECT_EQ(body.size(), 8 + 2 * sizeof(ParameterLayout));
    ParameterLayout layout[2];
    EXPECT_TRUE(read_reply<Resolve>(body, nullptr, CUmodule{}, nullptr, layout, 2u, nullptr, kNoAttributes, 0u));

    codec::Slots<calls::cuStreamWaitEvent> none;
    EXPECT_TRUE(reply<calls::cuStreamWaitEvent>(none).empty());
}

TEST(Replies, TruncatedAtEveryLength) {
    codec::Slots<Resolve> slots;
    fill(slots, 3, true);
    const auto whole = reply<Resolve>(slots);
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        std::vector<std::byte> body(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        body.shrink_to_fit();
        std::vector<ParameterLayout> layout(3);
        unsigned count = 0;
        EXPECT_FALSE(
            read_reply<Resolve>(body, nullptr, CUmodule{}, nullptr, layout.data(), 3u, &count, kNoAttributes, 0u))
            << bytes;
    }
}

TEST(Replies, ElementsBeyondTheRoomAreCut) {
    codec::Slots<Resolve> slots;
    fill(slots, 6, true);
    auto body = reply<Resolve>(slots);
    std::vector<ParameterLayout> layout(2);  // of exactly this size, so that AddressSanitizer detects an overflow
    unsigned count = 0;
    ASSERT_TRUE(read_reply<Resolve>(body, nullptr, CUmodule{}, nullptr, layout.data(), 2u, &count, kNoAttributes, 0u));
    EXPECT_EQ(layout[1].offset_bytes, 8u);
    EXPECT_EQ(count, 42u);
}

TEST(Replies, HugeCounts) {
    codec::Slots<Resolve> slots;
    fill(slots, 3, true);
    const auto whole = reply<Resolve>(slots);
    for (const std::uint64_t elements : {std::uint64_t{5}, std::uint64_t{codec::kMaxArrayElements} + 1,
                                         (std::uint64_t{1} << 61) + 1, ~std::uint64_t{0}}) {
        auto body = whole;
        std::memcpy(body.data(), &elements, sizeof elements);
        std::vector<ParameterLayout> layout(3);
        unsigned count = 0;
        EXPECT_FALSE(
            read_reply<Resolve>(body, nullptr, CUmodule{}, nullptr, layout.data(), 3u, &count, kNoAttributes, 0u))
            << elements;
    }
}

TEST(Replies, InOutIsReturned) {
    using Call = calls::cuTensorMapReplaceAddress;
    CUtensorMap map{};
    auto body = command<Call>(&map, nullptr);
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    std::memset(static_cast<void*>(&slots.at<Call::tensorMap>().object), 0x33, sizeof map);
    auto answer = reply<Call>(slots);
    ASSERT_TRUE(read_reply<Call>(answer, &map, nullptr));
    EXPECT_EQ(reinterpret_cast<const unsigned char*>(&map)[100], 0x33);
}

}  // namespace
}  // namespace gpupool::test
