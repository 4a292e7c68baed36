// The first readers of a peer's bytes: the frame header's decoder, handshake frames, a running channel, and a lane.
//
// Random bytes never have a right CRC, so the first byte of an input selects: 0 uses the rest as it is, otherwise it is
// a list of frames whose CRCs are computed here. Each frame is 8 bytes (type, flags, sequence and acknowledgement as
// small numbers, payload size) and its payload.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <vector>

#include "protocol/wire/channel.h"
#include "protocol/wire/handshake_io.h"
#include "protocol/wire/lanes.h"
#include "tests/support/transport/inproc/connection.h"

namespace {

using namespace gpupool;
using Bytes = std::span<const std::byte>;

constexpr std::size_t kPipeBytes = 128u << 10;
constexpr std::size_t kMaxInputBytes = 16u << 10;
constexpr std::uint64_t kTransferBytes = 4096;

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

// The same for pieces that arrive over lanes.
class CheckingLaneReceiver final : public wire::LaneReceiver {
  public:
    std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override {
        require(bytes > 0 && bytes <= wire::Lanes::kMaxPieceBytes);
        if (transfer > 3 || offset > kTransferBytes || bytes > kTransferBytes - offset) {
            return {};
        }
        ++in_progress_;
        return std::span(memory_).subspan(offset, bytes);
    }
    void on_piece(std::uint64_t, std::uint64_t, std::size_t) override { require(in_progress_-- == 1); }
    void on_piece_lost(std::uint64_t, std::uint64_t, std::size_t) override { require(in_progress_-- == 1); }
    void on_lanes_ended(const Error& cause) override {
        require(in_progress_ == 0 && !cause.message.empty());
        ended_.release();
    }
    void wait_ended() { ended_.acquire(); }

  private:
    std::array<std::byte, kTransferBytes> memory_{};
    int in_progress_ = 0;
    std::binary_semaphore ended_{0};
};

// Accepts every bulk piece that lies within its one transfer, and checks its arguments.
class CheckingReceiver final : public wire::Receiver {
  public:
    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override {
        require(bytes > 0 && bytes <= wire::kMaxPayloadBytes);
        if (transfer > 3 || offset > kTransferBytes || bytes > kTransferBytes - offset) {
            return {};
        }
        return std::span(memory_).subspan(offset, bytes);
    }
    void on_bulk(std::uint64_t, std::uint64_t offset, std::size_t bytes) override {
        require(offset + bytes <= kTransferBytes);
    }
    void on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override {
        require(type == wire::FrameType::commands || type == wire::FrameType::replies ||
                type == wire::FrameType::control);
        checksum_ ^= wire::crc32c({payload.get(), bytes});  // reads every byte
        require(!closed_);
    }
    void on_closed(const Error& cause) override {
        require(!closed_ && !cause.message.empty());
        closed_ = true;
    }

  private:
    std::array<std::byte, kTransferBytes> memory_{};
    std::uint32_t checksum_ = 0;
    bool closed_ = false;
};

std::vector<std::byte> frames_from(Bytes input) {
    std::vector<std::byte> stream;
    while (input.size() >= 8) {
        std::array<std::uint8_t, 8> fields;
        std::memcpy(fields.data(), input.data(), fields.size());
        input = input.subspan(8);
        const std::size_t wanted = fields[4] | std::size_t{fields[5]} << 8;
        const Bytes payload = input.first(std::min(wanted, input.size()));
        input = input.subspan(payload.size());
        wire::FrameHeader header;
        header.payload_bytes = static_cast<std::uint32_t>(fields[6] == 0xff ? wanted << 12 : payload.size());
        header.sequence = fields[2];
        header.acknowledged = fields[3];
        header.type = static_cast<wire::FrameType>(fields[0] % 13);
        header.payload_crc = wire::payload_crc(header.type, payload);
        std::array<std::byte, wire::kHeaderBytes> encoded;
        wire::encode(header, encoded);
        if (fields[7] == 0xff) {  // an invalid flag under a right CRC
            encoded[26] = static_cast<std::byte>(fields[1]);
            const std::uint32_t crc = wire::crc32c(Bytes(encoded).first(32));
            std::memcpy(encoded.data() + 32, &crc, sizeof(crc));
        }
        stream.insert(stream.end(), encoded.begin(), encoded.end());
        stream.insert(stream.end(), payload.begin(), payload.end());
    }
    return stream;
}

void feed_decoder(Bytes stream) {
    if (stream.size() < wire::kHeaderBytes) {
        return;
    }
    const auto header = wire::decode(stream.first<wire::kHeaderBytes>());
    if (!header) {
        return;
    }
    std::array<std::byte, wire::kHeaderBytes> again;
    wire::encode(*header, again);
    require(std::memcmp(again.data(), stream.data(), again.size()) == 0);
}

void feed_handshake(Bytes stream) {
    auto [here, there] = transport::inproc::make_pair(kPipeBytes);
    const transport::ConstBuffer buffers[] = {stream};
    require(there->send(buffers).ok());
    there->shutdown();
    while (auto frame = wire::read_frame(*here, 4096)) {
        require(frame->payload.size() <= 4096);
    }
}

void feed_channel(Bytes stream) {
    auto [here, there] = transport::inproc::make_pair(kPipeBytes);
    CheckingReceiver receiver;
    wire::Channel channel(std::move(here), receiver);
    const transport::ConstBuffer buffers[] = {stream};
    require(there->send(buffers).ok());
    channel.start();
    (void)channel.append(wire::FrameType::replies, 8, [](std::byte* place) { std::memset(place, 0, 8); });
    there->shutdown();
    channel.close(std::chrono::milliseconds(50));  // ends when the stream does
    require(!channel.error().ok());
}

void feed_lane(Bytes stream) {
    auto [here, there] = transport::inproc::make_pair(kPipeBytes);
    CheckingLaneReceiver receiver;
    wire::Lanes lanes(receiver, {});
    const transport::ConstBuffer buffers[] = {stream};
    require(there->send(buffers).ok());
    there->shutdown();
    require(lanes.add(0, std::move(here)).ok());
    receiver.wait_ended();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0 || size > kMaxInputBytes) {
        return 0;
    }
    const Bytes input = std::as_bytes(std::span(data + 1, size - 1));
    std::vector<std::byte> built;
    if (data[0] != 0) {
        built = frames_from(input);
    }
    const Bytes stream = data[0] == 0 ? input : Bytes(built);
    if (stream.size() > kPipeBytes) {
        return 0;
    }
    feed_decoder(stream);
    feed_handshake(stream);
    feed_channel(stream);
    feed_lane(stream);
    return 0;
}
