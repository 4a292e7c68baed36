// Single frames on a bare connection: the handshake, and administration, before or without a Channel.
//
// These frames are not retained: their sequence is 0. Reading consumes exactly one frame's bytes, so that the next user
// of the connection (a worker, a Channel) starts at the beginning of a frame.
//
// Threads: one reads, one writes. Errors: those of the connection (`timed_out` if the whole frame has not arrived in
// time), `invalid_input`, `unsupported` and `limit_exceeded` if the peer violates the protocol.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/result.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/frame.h"

namespace gpupool::wire {

struct ReceivedFrame {
    FrameType type = FrameType::hello;
    std::vector<std::byte> payload;
};

// Receives one frame in parts, for an event loop, and no byte of what follows it.
class FrameCollector {
  public:
    // `max_payload_bytes` is checked before memory is allocated.
    explicit FrameCollector(std::size_t max_payload_bytes) : max_payload_bytes_(max_payload_bytes) {}

    // Receives what has arrived. Returns the frame once it is whole, and then starts over; nothing if the rest has not
    // arrived yet. Never blocks.
    Result<std::optional<ReceivedFrame>> receive(transport::Connection& connection);

  private:
    friend Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                            transport::Clock::time_point deadline);
    // Where the next bytes go; empty when the frame is whole.
    [[nodiscard]] std::span<std::byte> room();
    // `bytes` of that room were filled.
    Status filled(std::size_t bytes);
    Result<ReceivedFrame> finish();

    const std::size_t max_payload_bytes_;
    std::array<std::byte, kHeaderBytes> header_bytes_{};
    std::size_t received_bytes_ = 0;  // of header and payload
    FrameHeader header_;
    std::vector<std::byte> payload_;
};

// `max_payload_bytes` is checked before memory is allocated. The deadline applies to the whole frame and is cleared
// afterwards.
Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 transport::Clock::time_point deadline = transport::kNoDeadline);
Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 std::chrono::milliseconds timeout);

// Reads the reply to a hello. One frame must arrive by `deadline`: the reply itself, or an ack, by which a server
// reports that it has admitted the client and its driver is starting; then the reply may take `starting` longer.
Result<ReceivedFrame> read_answer(transport::Connection& connection, std::size_t max_payload_bytes,
                                  transport::Clock::time_point deadline, std::chrono::milliseconds starting);

Status write_frame(transport::Connection& connection, FrameType type, std::span<const std::byte> payload);

// As write_frame(), but never blocks: drops what the connection does not accept at once. If that was the whole frame,
// returns true; otherwise the connection is of no further use.
bool write_frame_now(transport::Connection& connection, FrameType type, std::span<const std::byte> payload);

// A frame as bytes, for an event loop to send in parts.
std::vector<std::byte> frame_bytes(FrameType type, std::span<const std::byte> payload);

}  // namespace gpupool::wire
