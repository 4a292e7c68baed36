#include "protocol/wire/handshake_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace gpupool::wire {
namespace {

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

std::span<std::byte> FrameCollector::room() {
    if (received_bytes_ < kHeaderBytes) {
        return std::span(header_bytes_).subspan(received_bytes_);
    }
    return std::span(payload_).subspan(received_bytes_ - kHeaderBytes);
}

Status FrameCollector::filled(std::size_t bytes) {
    received_bytes_ += bytes;
    if (received_bytes_ != kHeaderBytes || bytes == 0) {
        return {};
    }
    const auto header = decode(header_bytes_);
    if (!header) {
        return header.error();
    }
    if (header->payload_bytes > max_payload_bytes_) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("received a frame of {} bytes where at most {} are accepted", header->payload_bytes,
                                 max_payload_bytes_)};
    }
    if (header->sequence != 0 || header->acknowledged != 0) {
        return Error{ErrorCode::invalid_input, "received a session's frame where a handshake frame was expected"};
    }
    header_ = *header;
    payload_.resize(header_.payload_bytes);
    return {};
}

Result<ReceivedFrame> FrameCollector::finish() {
    received_bytes_ = 0;
    ReceivedFrame frame{header_.type, std::exchange(payload_, {})};
    if (payload_crc(frame.type, frame.payload) != header_.payload_crc) {
        return Error{ErrorCode::invalid_input, "a frame arrived damaged: its payload's CRC does not match"};
    }
    return frame;
}

Result<std::optional<ReceivedFrame>> FrameCollector::receive(transport::Connection& connection) {
    while (!room().empty()) {
        const auto received = connection.receive_some(room());
        if (!received) {
            return received.error();
        }
        if (*received == 0) {
            return std::optional<ReceivedFrame>();
        }
        GPUPOOL_TRY(filled(*received));
    }
    auto frame = finish();
    if (!frame) {
        return frame.error();
    }
    return std::optional(std::move(*frame));
}

Result<ReceivedFrame> read_frame(transport::Connection& connection, std::size_t max_payload_bytes,
                                 transport::Clock::time_point deadline) {
    FrameCollector collector(max_payload_bytes);
    connection.set_receive_deadline(deadline);
    Status status;
    while (status && !collector.room().empty()) {
        const auto received = connection.receive(collector.room());
        status = received ? collector.filled(*received) : Status(received.error());
    }
    connection.set_receive_deadline(transport::kNoDeadline);
    return status ? collector.finish() : Result<ReceivedFrame>(status.error());
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

bool write_frame_now(transport::Connection& connection, FrameType type, std::span<const std::byte> payload) {
    const auto header = header_of(type, payload);
    const transport::ConstBuffer buffers[] = {header, payload};
    const auto sent = connection.send_some(buffers);
    return sent && *sent == header.size() + payload.size();
}

std::vector<std::byte> frame_bytes(FrameType type, std::span<const std::byte> payload) {
    const auto header = header_of(type, payload);
    std::vector<std::byte> bytes(header.size() + payload.size());
    std::copy(payload.begin(), payload.end(), std::copy(header.begin(), header.end(), bytes.begin()));
    return bytes;
}

}  // namespace gpupool::wire
