// The benchmarks' emulated network: data leaves unchanged and not before its time, however often the ring wraps.
#include "benchmarks/network/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/network/parameters.h"
#include "tests/support/transport/inproc/connection.h"
#include "tests/support/waiting.h"

namespace gpupool::test {
namespace {

using network::Link;
using network::Path;
using network::Traffic;
using namespace std::chrono_literals;

std::vector<std::byte> random_bytes(std::size_t count) {
    std::mt19937_64 random(7);
    std::vector<std::byte> bytes(count);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    return bytes;
}

std::vector<std::byte> receive_all(transport::Connection& from, std::size_t bytes) {
    std::vector<std::byte> received(bytes);
    for (std::size_t done = 0; done < bytes;) {
        const auto got = from.receive(std::span(received).subspan(done));
        if (!got) {
            break;
        }
        done += *got;
    }
    return received;
}

// `rate` 0: unlimited.
void send_through(double rate, std::chrono::nanoseconds delay, std::size_t bytes) {
    const auto data = random_bytes(bytes);
    auto [here, there] = transport::inproc::make_pair();
    std::vector<std::byte> received;
    std::thread receiver([&, &from = *there] { received = receive_all(from, bytes); });
    Traffic traffic;
    Link link(delay, rate);
    {
        Path path(link, *here, traffic);
        std::mt19937_64 random(9);
        for (std::size_t done = 0; done < bytes;) {
            const auto room = path.room();
            ASSERT_TRUE(room);
            const std::size_t count = std::min<std::size_t>(1 + random() % room->size(), bytes - done);
            std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(done), count, room->begin());
            path.push(count);
            done += count;
        }
    }
    receiver.join();
    EXPECT_TRUE(received == data);
}

TEST(NetworkLink, KeepsTheDataWhenTheRingWraps) {
    send_through(0, 0us, 30u << 20);
    send_through(0, 500us, 30u << 20);
}

TEST(NetworkLink, KeepsTheDataOfASlowLine) {
    send_through(50e6, 100us, 4u << 20);
}

TEST(NetworkLink, DeliversAfterTheDelay) {
    auto [here, there] = transport::inproc::make_pair();
    Traffic traffic;
    Link link(20ms, 0);
    Path path(link, *here, traffic);
    const auto begin = network::Clock::now();
    const auto room = path.room();
    ASSERT_TRUE(room);
    (*room)[0] = std::byte{1};
    path.push(1);
    EXPECT_EQ(receive_all(*there, 1), std::vector{std::byte{1}});
    EXPECT_GE(network::Clock::now() - begin, 20ms);
}

TEST(NetworkLink, ReportsDeliveredBytes) {
    auto [here, there] = transport::inproc::make_pair();
    Traffic traffic;
    Link link(20ms, 0);
    Path path(link, *here, traffic);
    EXPECT_TRUE(path.wait_delivered(network::Clock::now()));
    EXPECT_TRUE(path.has_room());
    const auto room = path.room();
    ASSERT_TRUE(room);
    path.push(room->size());
    EXPECT_FALSE(path.wait_delivered(network::Clock::now()));
    EXPECT_TRUE(path.wait_delivered(network::Clock::now() + 10s));
    EXPECT_EQ(receive_all(*there, room->size()).size(), room->size());
}

TEST(NetworkLink, LaneFillsWhenItsReceiverIsBlocked) {
    auto [here, there] = transport::inproc::make_pair(64u << 10);
    Traffic traffic;
    Link link(0us, 0);
    Path path(link, *here, traffic);
    std::size_t pushed = 0;
    while (path.has_room()) {
        const auto room = path.room();
        ASSERT_TRUE(room);
        path.push(room->size());
        pushed += room->size();
        ASSERT_LE(pushed, 2 * Path::kBufferBytes);
        ASSERT_TRUE(wait_until_others_sleep()) << "the path has delivered what its receiver accepts";
    }
    EXPECT_GE(pushed, Path::kBufferBytes / 2);
    EXPECT_FALSE(path.wait_delivered(network::Clock::now() + 10ms));
    there->shutdown();
}

TEST(NetworkParameters, AreParsedWithUnits) {
    EXPECT_DOUBLE_EQ(network::seconds("100us").value_or(0), 100e-6);
    EXPECT_DOUBLE_EQ(network::seconds("1.5ms").value_or(0), 1.5e-3);
    EXPECT_DOUBLE_EQ(network::bytes_per_s("25gbit").value_or(0), 25e9 / 8);
    for (const char* text : {"", "100", "us", "-1us", "11s", "1us ", "nanus"}) {
        EXPECT_FALSE(network::seconds(text)) << text;
    }
    for (const char* text : {"", "0gbit", "25", "gbit", "-1gbit", "25gb"}) {
        EXPECT_FALSE(network::bytes_per_s(text)) << text;
    }
}

TEST(NetworkLink, ReceiversErrorEndsTheLane) {
    auto [here, there] = transport::inproc::make_pair();
    Traffic traffic;
    Link link(0us, 0);
    Path path(link, *here, traffic);
    there->shutdown();
    Status status;
    for (int i = 0; i < 1000 && status; ++i) {
        const auto room = path.room();
        if (!room) {
            status = room.error();
        } else {
            path.push(room->size());
        }
    }
    EXPECT_FALSE(status);
}

}  // namespace
}  // namespace gpupool::test
