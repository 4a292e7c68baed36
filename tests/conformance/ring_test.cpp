// The ring of bytes alone: over one mapping, so that a sanitizer sees both sides, and with a hostile other side that
// writes false indices to its half of the control block.
#include "protocol/transport/shm/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "tests/conformance/transports.h"

namespace gpupool::testing {
namespace {

using transport::shm::RingControl;
using transport::shm::RingMemory;
using transport::shm::RingReader;
using transport::shm::RingWriter;

constexpr std::size_t kRing = 4096;

struct Ring {
    RingControl control;
    std::array<std::byte, kRing> bytes{};
    RingMemory memory() { return {&control, bytes}; }
};

std::size_t expect(const Result<std::size_t>& result) {
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? *result : 0;
}

void expect_refused(const Result<std::size_t>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::invalid_input);
}

TEST(Ring, FillsUpAndContinuesAfterReads) {
    Ring ring;
    RingWriter writer(ring.memory());
    RingReader reader(ring.memory());
    const auto data = pattern(3 * kRing, 1);
    EXPECT_EQ(expect(writer.write(data)), kRing);
    EXPECT_FALSE(writer.may_write());
    EXPECT_EQ(reader.readable_bytes(), 0u) << "nothing was published";
    EXPECT_FALSE(writer.publish()) << "no thread sleeps";
    std::vector<std::byte> out(1000);
    EXPECT_EQ(expect(reader.read(out)), 1000u);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), data.begin()));
    EXPECT_FALSE(writer.may_write()) << "no room was given back";
    (void)reader.release();
    EXPECT_EQ(expect(writer.write(std::span(data).subspan(kRing))), 1000u);
    (void)writer.publish();
    out.resize(kRing);
    EXPECT_EQ(expect(reader.read(out)), kRing);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), data.begin() + 1000));
}

TEST(Ring, TakeoverContinuesWhereThePreviousUserStopped) {
    Ring ring;
    const auto data = pattern(300, 2);
    RingWriter first(ring.memory());
    ASSERT_EQ(expect(first.write(std::span(data).first(100))), 100u);
    (void)first.publish();
    RingReader reader(ring.memory());
    std::vector<std::byte> out(60);
    ASSERT_EQ(expect(reader.read(out)), 60u);
    (void)reader.release();
    RingWriter second(ring.memory());
    ASSERT_EQ(expect(second.write(std::span(data).subspan(100))), 200u);
    (void)second.publish();
    RingReader next(ring.memory());
    out.resize(300);
    ASSERT_EQ(expect(next.read(out)), 240u);
    EXPECT_TRUE(std::equal(data.begin() + 60, data.end(), out.begin()));
}

TEST(Ring, WakesOnlyASleepingReader) {
    Ring ring;
    RingWriter writer(ring.memory());
    RingReader reader(ring.memory());
    const auto data = pattern(8, 3);
    EXPECT_TRUE(reader.prepare_to_sleep());
    ASSERT_EQ(expect(writer.write(data)), 8u);
    EXPECT_TRUE(writer.publish());
    ASSERT_EQ(expect(writer.write(data)), 8u);
    EXPECT_FALSE(writer.publish()) << "it was woken already";
    EXPECT_FALSE(reader.prepare_to_sleep()) << "there is something to read";
    ASSERT_EQ(expect(writer.write(data)), 8u);
    EXPECT_FALSE(writer.publish()) << "it stayed awake";
}

TEST(Ring, WakesASleepingWriterOnceEnoughRoomIsFree) {
    Ring ring;
    RingWriter writer(ring.memory());
    RingReader reader(ring.memory());
    ASSERT_EQ(expect(writer.write(pattern(kRing, 4))), kRing);
    (void)writer.publish();
    EXPECT_TRUE(writer.prepare_to_sleep());
    std::vector<std::byte> out(16);
    ASSERT_EQ(expect(reader.read(out)), 16u);
    EXPECT_FALSE(reader.release());
    out.resize(kRing / 4);
    ASSERT_EQ(expect(reader.read(out)), kRing / 4);
    EXPECT_TRUE(reader.release());
    EXPECT_FALSE(writer.prepare_to_sleep()) << "there is room";
}

TEST(Ring, RefusesAWriterThatClaimsMoreThanFits) {
    Ring ring;
    RingReader reader(ring.memory());
    std::vector<std::byte> out(16);
    ring.control.written = kRing + 1;
    expect_refused(reader.read(out));
    ring.control.written = ~std::uint64_t{0};
    expect_refused(reader.read(out));
}

TEST(Ring, RefusesAWriterThatGoesBackwards) {
    Ring ring;
    RingReader reader(ring.memory());
    std::vector<std::byte> out(16);
    ring.control.written = 100;
    ASSERT_EQ(expect(reader.read(out)), 16u);
    ring.control.written = 50;
    out.resize(90);
    expect_refused(reader.read(out));
    ring.control.written = 10;  // less than has been read
    expect_refused(reader.read(out));
}

TEST(Ring, RefusesAReaderAheadOfTheWriterOrGoingBackwards) {
    Ring ring;
    RingWriter writer(ring.memory());
    const auto data = pattern(kRing, 5);
    ASSERT_EQ(expect(writer.write(std::span(data).first(100))), 100u);
    (void)writer.publish();
    ring.control.read = 101;
    expect_refused(writer.write(data));
    ring.control.read = 60;
    ASSERT_EQ(expect(writer.write(data)), kRing - 40);
    ring.control.read = 59;
    expect_refused(writer.write(data));
    ring.control.read = ~std::uint64_t{0};
    expect_refused(writer.write(data));
}

TEST(Ring, RefusesImpossibleIndicesWhenTakenOver) {
    Ring ring;
    ring.control.written = 10;
    ring.control.read = 20;
    RingWriter writer(ring.memory());
    expect_refused(writer.write(pattern(1, 6)));
    RingReader reader(ring.memory());
    std::vector<std::byte> out(16);
    expect_refused(reader.read(out));
}

// No side wakes the other but through `bell`, which stands for the socket, so a lost wake-up shows as a test that
// hangs.
TEST(Ring, CarriesAllBytesBetweenSleepingThreads) {
    constexpr std::size_t kTotal = 8u << 20;
    Ring ring;
    std::atomic<int> data_bell{0};
    std::atomic<int> room_bell{0};
    const auto data = pattern(kTotal, 7);
    const auto sleep_at = [](std::atomic<int>& bell) {
        while (bell.exchange(0, std::memory_order_relaxed) == 0) {
            std::this_thread::yield();
        }
    };
    std::thread sender([&] {
        std::minstd_rand random(8);
        RingWriter writer(ring.memory());
        for (std::size_t sent = 0; sent < kTotal;) {
            const std::size_t want = std::min<std::size_t>(kTotal - sent, 1 + random() % 3000);
            const auto taken = writer.write(std::span(data).subspan(sent, want));
            ASSERT_TRUE(taken.ok());
            sent += *taken;
            if (writer.publish()) {
                data_bell.store(1, std::memory_order_relaxed);
            }
            if (*taken == 0 && writer.prepare_to_sleep()) {
                sleep_at(room_bell);
            }
        }
    });
    std::minstd_rand random(9);
    RingReader reader(ring.memory());
    std::vector<std::byte> received(kTotal);
    for (std::size_t got = 0; got < kTotal;) {
        const std::size_t want = std::min<std::size_t>(kTotal - got, 1 + random() % 3000);
        const auto count = reader.read(std::span(received).subspan(got, want));
        ASSERT_TRUE(count.ok());
        got += *count;
        if (reader.release()) {
            room_bell.store(1, std::memory_order_relaxed);
        }
        if (*count == 0 && reader.prepare_to_sleep()) {
            sleep_at(data_bell);
        }
    }
    sender.join();
    EXPECT_TRUE(received == data);
}

}  // namespace
}  // namespace gpupool::testing
