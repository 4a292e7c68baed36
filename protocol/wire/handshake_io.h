// Single frames on a bare connection: the handshake, and administration, before or without a Channel.
//
// These frames are not retained: their sequence is 0. Reading takes exactly one frame's bytes and not one more, so that
// whoever continues on the connection (a worker, a Channel) finds the stream at a frame's start.
//
// Threads: one reads, one writes. Errors: those of the connection (`timed_out` when the whole frame is not there in
//   time), `invalid_input`, `unsupported` and `limit_exceeded` for what a peer may not send.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

// `max_payload_bytes` is checked before memory is taken. The deadline bounds the whole frame and is lifted afterwards.
Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 transport::Clock::time_point deadline = transport::kNoDeadline);
Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 std::chrono::milliseconds timeout);

// The answer to a hello, of which one frame must come by `deadline`: the answer itself or an ack, by which a server
// says that it has let the client in and its driver is starting; then the answer may take `starting` longer.
Result<ReceivedFrame> read_answer(transport::Connection& connection, std::size_t max_payload_bytes,
                                  transport::Clock::time_point deadline, std::chrono::milliseconds starting);

Status write_frame(transport::Connection& connection, FrameType type, std::span<const std::byte> payload);

// The same for a peer that is not waited for: what the connection does not take at once is dropped, and the connection
// is of no further use.
void write_last_frame(transport::Connection& connection, FrameType type, std::span<const std::byte> payload);

}  // namespace gpupool::wire
