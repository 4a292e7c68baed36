// The two ends of a session's lanes, and a LaneReceiver that records what it receives.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/wire/lanes.h"
#include "tests/conformance/channel_fixture.h"

namespace gpupool::testing {

class LaneRecorder final : public wire::LaneReceiver {
  public:
    void expect_transfer(std::uint64_t transfer, std::size_t bytes);

    bool wait_pieces(std::size_t count);
    bool wait_ended();
    std::vector<std::byte> data(std::uint64_t transfer);
    std::optional<Error> cause();
    std::size_t pieces();
    std::size_t lost();         // pieces that ended without their data
    std::size_t in_progress();  // destinations handed out whose outcome is not reported yet
    std::size_t times_ended();

    std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_lanes_ended(const Error& cause) override;

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, std::vector<std::byte>> transfers_;
    std::size_t pieces_ = 0, lost_ = 0, in_progress_ = 0, times_ended_ = 0;
    std::optional<Error> cause_;
};

struct LanePair {
    LanePair(std::size_t count, const std::function<Ends()>& connect, const wire::Lanes::Limits& limits = {})
        : client(client_side, limits), server(server_side, limits) {
        for (std::size_t index = 0; index < count; ++index) {
            Ends ends = connect();
            EXPECT_TRUE(client.add(index, std::move(ends.first)).ok());
            EXPECT_TRUE(server.add(index, std::move(ends.second)).ok());
        }
    }
    LaneRecorder client_side;  // what the client received
    LaneRecorder server_side;
    wire::Lanes client;
    wire::Lanes server;
};

// Sends `data` as pieces of `piece_bytes` each.
Status send_all(
    wire::Lanes& lanes, std::uint64_t transfer, std::span<const std::byte> data, std::size_t piece_bytes,
    const std::function<void()>& done = [] {});

}  // namespace gpupool::testing
