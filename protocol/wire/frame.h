// The unit of transmission: a fixed header and a payload.
//
// A frame's header is 40 bytes, little endian:
//
//   offset  size  field
//        0     4  magic            "GPF1": the digit is the version of this format
//        4     4  payload_bytes    at most kMaxPayloadBytes; a larger value is refused before any payload is read
//        8     8  sequence         session-wide, starts at 1, one per retained frame and direction; 0: not retained
//       16     8  acknowledged     every frame of the other direction up to this one has been received
//       24     2  type             FrameType
//       26     2  flags            none yet: must be 0
//       28     4  payload_crc      CRC-32C of the payload; in a bulk or packed frame, only of the header of the data
//       32     4  header_crc       CRC-32C of the 32 bytes before it
//       36     4  reserved         must be 0
//
// A sender keeps retained frames until they are acknowledged, so that a broken connection can be resumed
// (Limits::resume; no daemon offers that yet).
//
// No CRC covers bulk data, packed or not. It is sent from the application's memory and received into it, and the
// application may write there meanwhile. It then gets mixed bytes, as with a local GPU, and this must have no other
// effect. A CRC of changing memory means nothing, and the carrier (TCP, shared memory) protects the data itself.
// Everything that describes the data and its destination is covered: by header_crc, and by payload_crc, which is
// checked before the destination is looked up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"

namespace gpupool::wire {

enum class FrameType : std::uint16_t {
    hello = 1,     // client -> server, first frame: schema Hello
    welcome = 2,   // server -> client: schema Welcome
    refused = 3,   // server -> client, last frame: schema Refused
    commands = 4,  // client -> server: command records back to back (protocol/codec/record.h)
    replies = 5,   // server -> client: reply records back to back
    bulk = 6,      // both directions: BulkHeader, then data
    control = 7,   // both directions: schema Control (status, administration)
    ack = 8,       // both directions, never retained, no payload: only `acknowledged` is used
    goodbye = 9,   // both directions, last frame of an orderly end
    packed = 10,   // both directions, on a lane (lanes.h): PackedHeader, then the data as a zstd frame
};

inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::size_t kMaxPayloadBytes = 4u << 20;

struct FrameHeader {
    std::uint32_t payload_bytes = 0;
    std::uint64_t sequence = 0;
    std::uint64_t acknowledged = 0;
    FrameType type = FrameType::ack;
    std::uint32_t payload_crc = 0;
};

// First bytes of a bulk frame's payload. A transfer is announced in the command stream (or in a reply); its data may be
// sent in any number of frames.
struct BulkHeader {
    std::uint64_t transfer = 0;
    std::uint64_t offset = 0;
};

// First bytes of a packed frame's payload. `bytes` is the size after decompression, at most that of a piece of bulk
// data.
struct PackedHeader {
    BulkHeader bulk;
    std::uint64_t bytes = 0;
};
static_assert(sizeof(PackedHeader) == 24);

void encode(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) noexcept;

// Refuses a wrong magic, CRC, type, size, flags or reserved field, and names it. `invalid_input` (magic, CRC, reserved)
// means that the bytes are damaged; `limit_exceeded` and `unsupported` mean that the peer sent them intentionally.
Result<FrameHeader> decode(std::span<const std::byte, kHeaderBytes> in);

// The value of payload_crc for a frame with that payload.
std::uint32_t payload_crc(FrameType type, std::span<const std::byte> payload) noexcept;

// `seed` is the CRC of the preceding bytes, for computing a CRC in parts.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

// The implementation for processors without the instruction; declared for tests.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

}  // namespace gpupool::wire
