// Tests where the client's bulk data is received: at its destination if it is expected, in a buffer if it arrives
// earlier.
#include "server/worker/transfers/incoming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/manual_clock.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using worker::Incoming;

constexpr std::size_t kPiece = codec::kAheadPieceBytes;
constexpr std::uint64_t kAhead = codec::kTransferSentAhead;

class Ahead : public ::testing::Test {
  protected:
    // What a lane does with one piece, whose bytes are all `seed`.
    bool comes(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, int seed) {
        const auto place = incoming_.claim(transfer, offset, bytes);
        if (place.empty()) {
            return false;
        }
        std::memset(place.data(), seed, place.size());
        incoming_.landed_whole(transfer, offset);
        return true;
    }
    bool is_all(const std::byte* at, std::size_t bytes, int seed) {
        return std::all_of(at, at + bytes, [&](std::byte one) { return one == static_cast<std::byte>(seed); });
    }

    Incoming incoming_;
    std::vector<std::byte> memory_ = std::vector<std::byte>(4 * kPiece);
};

TEST_F(Ahead, ExpectedPieceLandsInItsPlace) {
    EXPECT_TRUE(incoming_.begin(kAhead | 1, 2 * kPiece));
    incoming_.expect(kAhead | 1, 0, kPiece, memory_.data());
    incoming_.expect(kAhead | 1, kPiece, kPiece, memory_.data() + kPiece);
    EXPECT_EQ(incoming_.claim(kAhead | 1, kPiece, kPiece).data(), memory_.data() + kPiece);
    EXPECT_FALSE(incoming_.take_landed(kAhead | 1)) << "the first piece is taken first";
    EXPECT_EQ(incoming_.claim(kAhead | 1, 0, kPiece).data(), memory_.data());
    incoming_.landed_whole(kAhead | 1, kPiece);
    incoming_.landed_whole(kAhead | 1, 0);
    EXPECT_EQ(incoming_.take_landed(kAhead | 1)->offset, 0u);
    EXPECT_EQ(incoming_.take_landed(kAhead | 1)->offset, kPiece);
}

// No honest client sends a piece over two connections. The worker could not tell whose data has landed, and one
// connection might write to memory that was released.
TEST_F(Ahead, PieceArrivesOverOneConnection) {
    EXPECT_TRUE(incoming_.begin(1));
    incoming_.expect(1, 0, kPiece, memory_.data());
    EXPECT_FALSE(incoming_.place(1, 0, kPiece / 2).empty());
    EXPECT_TRUE(incoming_.claim(1, 0, kPiece).empty()) << "a part of it is being received";
    EXPECT_FALSE(incoming_.take_landed(1));
    incoming_.landed(1, 0, kPiece / 2);
    EXPECT_TRUE(incoming_.claim(1, 0, kPiece).empty());
    EXPECT_TRUE(incoming_.begin(2));
    incoming_.expect(2, 0, kPiece, memory_.data());
    EXPECT_FALSE(incoming_.claim(2, 0, kPiece).empty());
    EXPECT_TRUE(incoming_.place(2, 0, kPiece).empty()) << "a lane receives it";
}

TEST_F(Ahead, LaneWaitsBrieflyForThePlace) {
    ManualClock clock;
    Incoming incoming(clock);
    auto place = std::async(std::launch::async, [&] { return incoming.claim(kAhead | 1, 0, kPiece); });
    ASSERT_TRUE(clock.wait_for_wait_until(Incoming::kEarlyTimeout));
    clock.advance(Incoming::kEarlyTimeout - 1us);
    EXPECT_TRUE(incoming.begin(kAhead | 1, kPiece));
    incoming.expect(kAhead | 1, 0, kPiece, memory_.data());
    const auto given = place.get();
    ASSERT_EQ(given.data(), memory_.data());
    std::memset(given.data(), 7, given.size());
    incoming.landed_whole(kAhead | 1, 0);
    ASSERT_TRUE(incoming.take_landed(kAhead | 1));
    EXPECT_TRUE(is_all(memory_.data(), kPiece, 7));
}

TEST_F(Ahead, LaneReceivesWithoutThePlaceAfterTheTimeout) {
    ManualClock clock;
    Incoming incoming(clock);
    auto place = std::async(std::launch::async, [&] { return incoming.claim(kAhead | 1, 0, kPiece); });
    ASSERT_TRUE(clock.wait_for_wait_until(Incoming::kEarlyTimeout));
    clock.advance(Incoming::kEarlyTimeout);
    const auto given = place.get();
    ASSERT_EQ(given.size(), kPiece);
    std::memset(given.data(), 7, given.size());
    incoming.landed_whole(kAhead | 1, 0);
    EXPECT_TRUE(incoming.begin(kAhead | 1, kPiece));
    incoming.expect(kAhead | 1, 0, kPiece, memory_.data());
    ASSERT_TRUE(incoming.take_landed(kAhead | 1));
    EXPECT_TRUE(is_all(memory_.data(), kPiece, 7)) << "copied to its place";
}

TEST_F(Ahead, EarlyPieceIsCopiedWhenItIsExpected) {
    EXPECT_TRUE(comes(kAhead | 1, kPiece, 100, 2));
    EXPECT_TRUE(comes(kAhead | 1, 0, kPiece, 1));
    EXPECT_TRUE(incoming_.begin(kAhead | 1, kPiece + 100));
    EXPECT_FALSE(incoming_.take_landed(kAhead | 1));
    incoming_.expect(kAhead | 1, 0, kPiece, memory_.data());
    incoming_.expect(kAhead | 1, kPiece, 100, memory_.data() + kPiece);
    EXPECT_EQ(incoming_.take_landed(kAhead | 1)->place, memory_.data());
    EXPECT_EQ(incoming_.take_landed(kAhead | 1)->bytes, 100u);
    EXPECT_TRUE(is_all(memory_.data(), kPiece, 1));
    EXPECT_TRUE(is_all(memory_.data() + kPiece, 100, 2));
    EXPECT_TRUE(is_all(memory_.data() + kPiece + 100, 100, 0));
    incoming_.forget(kAhead | 1);
    EXPECT_TRUE(incoming_.begin(kAhead | 1, 0)) << "the name is free again";
}

TEST_F(Ahead, ExpectingWaitsForAPieceThatIsLanding) {
    const auto place = incoming_.claim(kAhead | 1, 0, kPiece);
    ASSERT_EQ(place.size(), kPiece);
    EXPECT_TRUE(incoming_.begin(kAhead | 1, kPiece));
    incoming_.expect(kAhead | 1, 0, kPiece, memory_.data());
    EXPECT_FALSE(incoming_.take_landed(kAhead | 1));
    EXPECT_TRUE(incoming_.claim(kAhead | 1, 0, kPiece).empty()) << "it is being received already";
    std::memset(place.data(), 3, place.size());
    incoming_.landed_whole(kAhead | 1, 0);
    ASSERT_TRUE(incoming_.take_landed(kAhead | 1));
    EXPECT_TRUE(is_all(memory_.data(), kPiece, 3));
}

// As when only small staging chunks are left.
TEST_F(Ahead, PartsOfAPieceMayBeExpected) {
    constexpr std::size_t kPart = 64u << 10;
    EXPECT_TRUE(incoming_.begin(kAhead | 1, kPiece));
    incoming_.expect(kAhead | 1, 0, kPart, memory_.data());
    const auto place = incoming_.claim(kAhead | 1, 0, kPiece);
    ASSERT_EQ(place.size(), kPiece);
    std::memset(place.data(), 1, kPart);
    std::memset(place.data() + kPart, 2, kPiece - kPart);
    incoming_.landed_whole(kAhead | 1, 0);
    EXPECT_EQ(incoming_.take_landed(kAhead | 1)->bytes, kPart);
    EXPECT_FALSE(incoming_.take_landed(kAhead | 1));
    for (std::size_t offset = kPart; offset < kPiece; offset += kPart) {
        incoming_.expect(kAhead | 1, offset, kPart, memory_.data() + offset);
        EXPECT_EQ(incoming_.take_landed(kAhead | 1)->offset, offset);
    }
    EXPECT_TRUE(is_all(memory_.data(), kPart, 1));
    EXPECT_TRUE(is_all(memory_.data() + kPart, kPiece - kPart, 2));
}

TEST_F(Ahead, EarlyDataIsBounded) {
    std::uint64_t taken = 0;
    while (comes(kAhead | (1 + taken), 0, kPiece, 1)) {
        ++taken;
    }
    EXPECT_GE(taken * kPiece, codec::kMaxAheadBytes);
    EXPECT_LE(taken * kPiece, Incoming::kMaxEarlyBytes);
    EXPECT_FALSE(comes(kAhead | 1000, 0, kPiece, 1));
    // Data that was copied to its place, or is no longer wanted, makes room.
    EXPECT_TRUE(incoming_.begin(kAhead | 1, kPiece));
    incoming_.expect(kAhead | 1, 0, kPiece, memory_.data());
    EXPECT_TRUE(incoming_.take_landed(kAhead | 1));
    EXPECT_TRUE(comes(kAhead | 1000, 0, kPiece, 1));
    EXPECT_FALSE(comes(kAhead | 1001, 0, kPiece, 1));
    EXPECT_TRUE(incoming_.begin(kAhead | 2, kPiece));
    incoming_.forget(kAhead | 2);
    EXPECT_TRUE(comes(kAhead | 1001, 0, kPiece, 1));
}

TEST_F(Ahead, OnlyDataSentAheadMayBeEarly) {
    EXPECT_FALSE(comes(1, 0, kPiece, 1));
    EXPECT_FALSE(comes(kAhead | codec::kTransferOfWorker | 1, 0, kPiece, 1));
    EXPECT_TRUE(incoming_.begin(kAhead | 1, kPiece));
    EXPECT_FALSE(comes(kAhead | 1, kPiece, kPiece, 1)) << "beyond the data sent ahead";
    EXPECT_FALSE(comes(kAhead | 1, 0, kPiece + 1, 1));
    EXPECT_TRUE(comes(kAhead | 1, 0, kPiece, 1));
    EXPECT_FALSE(comes(kAhead | 1, 0, kPiece, 1)) << "sent twice";
}

TEST_F(Ahead, UnwantedDataIsDropped) {
    std::vector<std::byte*> given_back;
    const auto give_back = [&](std::byte* place) { given_back.push_back(place); };
    EXPECT_TRUE(incoming_.begin(kAhead | 1, 4 * kPiece));
    incoming_.expect(kAhead | 1, 0, kPiece, memory_.data());
    const auto first = incoming_.claim(kAhead | 1, 0, kPiece);
    const auto second = incoming_.claim(kAhead | 1, kPiece, kPiece);
    EXPECT_TRUE(comes(kAhead | 1, 2 * kPiece, kPiece, 1));
    incoming_.abandon(kAhead | 1, give_back);
    EXPECT_TRUE(given_back.empty()) << "a lane still writes there";
    std::memset(first.data(), 1, first.size());
    std::memset(second.data(), 1, second.size());
    incoming_.landed_whole(kAhead | 1, 0);
    EXPECT_EQ(given_back, std::vector{memory_.data()});
    incoming_.landed_whole(kAhead | 1, kPiece);
    EXPECT_TRUE(comes(kAhead | 1, 3 * kPiece, kPiece, 1)) << "it was sent before";
    EXPECT_TRUE(incoming_.begin(kAhead | 1, 0)) << "all of it has arrived, so nothing is remembered";
}

}  // namespace
}  // namespace gpupool::test
