// The unit that travels: a fixed header and a payload.
//
// A frame's header is 40 bytes, little endian:
//
//   offset  size  field
//        0     4  magic            "GPF1": the digit is the format's version, which rises when anything here changes
//        4     4  payload_bytes    at most kMaxPayloadBytes; anything larger is refused before a byte of it is read
//        8     8  sequence         session-wide, starts at 1, one per retained frame and direction; 0: not retained
//       16     8  acknowledged     every frame of the other direction up to this one has been received
//       24     2  type             FrameType
//       26     2  flags            none yet: must be 0
//       28     4  payload_crc      CRC-32C of the payload; of a bulk or packed frame's, of its own header alone
//       32     4  header_crc       CRC-32C of the 32 bytes before it
//       36     4  reserved         must be 0
//
// Retained frames are kept by their sender until acknowledged, so that a broken connection can be resumed
// (Limits::resume; no daemon offers that yet).
//
// No CRC covers bulk data, packed or not. It is sent from the application's memory and received into it, and the
// application may write there meanwhile: it then has mixed bytes, as it would with the GPU beside it, and nothing else
// may come of it. A CRC of memory that changes says nothing, and what carries the frames (TCP, memory) guards the data
// by itself. Everything that says what the data is and where it goes is covered: by header_crc, and by payload_crc
// before the place is looked up.
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
    bulk = 6,      // either way: BulkHeader, then data
    control = 7,   // either way: schema Control (status, administration)
    ack = 8,       // either way, never retained, no payload: only `acknowledged` counts
    goodbye = 9,   // either way, last frame of an orderly end
    packed = 10,   // either way, on a lane (lanes.h): PackedHeader, then the data as a zstd frame
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

// First bytes of a bulk frame's payload. A transfer is announced in the command stream (or in a reply); its data
// may come in any number of frames.
struct BulkHeader {
    std::uint64_t transfer = 0;
    std::uint64_t offset = 0;
};

// The same of a packed frame: its data becomes so many bytes, and no piece of bulk data is larger.
struct PackedHeader {
    BulkHeader bulk;
    std::uint64_t bytes = 0;
};
static_assert(sizeof(PackedHeader) == 24);

void encode(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) noexcept;

// Refuses a wrong magic, CRC, type, size, flags or reserved field, saying which. `invalid_input` (magic, CRC, reserved)
// means that the bytes are damaged; `limit_exceeded` and `unsupported` mean that the peer meant them.
Result<FrameHeader> decode(std::span<const std::byte, kHeaderBytes> in);

// What stands in payload_crc of a frame with that payload.
std::uint32_t payload_crc(FrameType type, std::span<const std::byte> payload) noexcept;

// `seed` is the CRC of what came before, so that a CRC can be taken in pieces.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

// What crc32c() does on a processor without the instruction; by itself for tests.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t seed = 0) noexcept;

}  // namespace gpupool::wire
