#include "protocol/wire/handshake_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gpupool::wire {
namespace {

Result<ReceivedFrame> read_bounded(transport::Connection& connection, std::size_t max_payload_bytes) {
    std::array<std::byte, kHeaderBytes> bytes;
    GPUPOOL_TRY(transport::receive_exactly(connection, bytes));
    auto header = decode(bytes);
    if (!header) {
        return header.error();
    }
    if (header->payload_bytes > max_payload_bytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("received a frame of {} bytes where at most {} are accepted", header->payload_bytes,
                                 max_payload_bytes)};
    }
    if (header->sequence != 0 || header->acknowledged != 0) {
        return Error{ErrorCode::invalid_input, "received a session's frame where a handshake frame was expected"};
    }
    ReceivedFrame frame{header->type, std::vector<std::byte>(header->payload_bytes)};
    if (!frame.payload.empty()) {
        GPUPOOL_TRY(transport::receive_exactly(connection, frame.payload));
    }
    if (payload_crc(frame.type, frame.payload) != header->payload_crc) {
        return Error{ErrorCode::invalid_input, "a frame arrived damaged: its payload's CRC does not match"};
    }
    return frame;
}

std::array<std::byte, kHeaderBytes> header_of(FrameType type, std::span<const std::byte> payload) {
    FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.type = type;
    header.payload_crc = crc32c(payload);
    std::array<std::byte, kHeaderBytes> bytes;
    encode(header, bytes);
    return bytes;
}

}  // namespace

Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 transport::Clock::time_point deadline) {
    connection.set_receive_deadline(deadline);
    auto frame = read_bounded(connection, max_payload_bytes);
    connection.set_receive_deadline(transport::kNoDeadline);
    return frame;
}

Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 std::chrono::milliseconds timeout) {
    return read_frame(connection, max_payload_bytes, transport::Clock::now() + timeout);
}

Result<ReceivedFrame> read_answer(transport::Connection& connection, std::size_t max_payload_bytes,
                                  transport::Clock::time_point deadline, std::chrono::milliseconds starting) {
    auto frame = read_frame(connection, max_payload_bytes, deadline);
    if (frame && frame->type == FrameType::ack) {
        frame = read_frame(connection, max_payload_bytes, transport::Clock::now() + starting);
    }
    return frame;
}

Status write_frame(transport::Connection& connection, FrameType type, std::span<const std::byte> payload) {
    if (payload.size() > kMaxPayloadBytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("a frame of {} bytes is larger than {}", payload.size(), kMaxPayloadBytes)};
    }
    const auto header = header_of(type, payload);
    const transport::ConstBuffer buffers[] = {header, payload};
    return connection.send(buffers);
}

void write_last_frame(transport::Connection& connection, FrameType type, std::span<const std::byte> payload) {
    const auto header = header_of(type, payload);
    const transport::ConstBuffer buffers[] = {header, payload};
    (void)connection.send_some(buffers);
}

}  // namespace gpupool::wire
