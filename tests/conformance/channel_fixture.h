// A Receiver that records what it receives, and other helpers of the channel tests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/wire/channel.h"
#include "tests/conformance/transports.h"
#include "tests/support/waiting.h"

namespace gpupool::testing {

using test::eventually;
using test::ObservedThread;

inline constexpr std::chrono::seconds kTimeout{60};

class Recorder final : public wire::Receiver {
  public:
    // Announces transfer `transfer` of `bytes`; returns the buffer that its data is written to.
    std::vector<std::byte>& expect_transfer(std::uint64_t transfer, std::size_t bytes);

    // on_frame waits until let_go().
    void hold();
    void let_go();

    // Each waits until its condition holds, and returns false on a timeout.
    bool wait_frames(std::size_t count);
    bool wait_bulk_bytes(std::uint64_t bytes);
    bool wait_closed(std::size_t times = 1);

    struct Frame {
        wire::FrameType type;
        std::vector<std::byte> payload;
    };
    std::vector<Frame> frames();
    std::vector<std::uint64_t> words();  // the payloads of commands and replies, joined
    std::size_t payload_bytes();
    std::optional<Error> cause();
    std::size_t times_closed();

    std::function<void(const Error&)> when_closed;  // set before the channel starts

    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override;
    void on_closed(const Error& cause) override;

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Frame> frames_;
    std::map<std::uint64_t, std::vector<std::byte>> transfers_;
    std::uint64_t bulk_bytes_ = 0;
    std::optional<Error> cause_;
    std::size_t times_closed_ = 0;
    bool held_ = false;
};

// Appends one 8-byte command record.
Status append_word(wire::Channel& channel, std::uint64_t word, wire::FrameType type = wire::FrameType::commands);
Status append_record(wire::Channel& channel, std::span<const std::byte> record);

// Two channels over one connection, started.
struct ChannelPair {
    explicit ChannelPair(Ends ends, const wire::Limits& limits = {})
        : client(std::move(ends.first), client_side, limits), server(std::move(ends.second), server_side, limits) {
        client.start();
        server.start();
    }
    Recorder client_side;  // what the client received
    Recorder server_side;
    wire::Channel client;
    wire::Channel server;
};

// Waits until the readers of at least `channels` channels of this process sleep, if only for the short time that a
// reader sleeps at once while a thread polls.
bool readers_sleep(std::size_t channels);

}  // namespace gpupool::testing
