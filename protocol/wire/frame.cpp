#include "protocol/wire/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/printable.h"

namespace gpupool::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they lie in memory");

constexpr std::uint32_t kMagic = 0x31465047;  // "GPF1": the digit is the format's version
constexpr std::uint32_t kVersionShift = 24;
constexpr char version_of(std::uint32_t magic) {
    return static_cast<char>(magic >> kVersionShift);
}

// Do these first bytes begin a frame of another version of the format?
bool is_other_version(std::uint32_t magic) {
    constexpr std::uint32_t kName = (1u << kVersionShift) - 1;
    return (magic & kName) == (kMagic & kName) && version_of(magic) >= '0' && version_of(magic) <= '9';
}

constexpr std::size_t kCheckedBytes = 32;  // bytes covered by header_crc

template <class T>
void put(std::byte* header, std::size_t offset, T value) noexcept {
    std::memcpy(header + offset, &value, sizeof(value));
}

template <class T>
T get(const std::byte* header, std::size_t offset) noexcept {
    T value{};
    std::memcpy(&value, header + offset, sizeof(value));
    return value;
}

}  // namespace

void encode(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) noexcept {
    std::byte* at = out.data();
    put(at, 0, kMagic);
    put(at, 4, header.payload_bytes);
    put(at, 8, header.sequence);
    put(at, 16, header.acknowledged);
    put(at, 24, static_cast<std::uint16_t>(header.type));
    put(at, 26, std::uint16_t{0});
    put(at, 28, header.payload_crc);
    put(at, 32, crc32c(out.first<kCheckedBytes>()));
    put(at, 36, std::uint32_t{0});
}

Result<FrameHeader> decode(std::span<const std::byte, kHeaderBytes> in) {
    const std::byte* at = in.data();
    if (const auto magic = get<std::uint32_t>(at, 0); magic != kMagic) {
        if (is_other_version(magic)) {
            return Error{ErrorCode::invalid_input,
                         fmt::format("the other side sends gpupool frames of format {}, this side knows format {}: "
                                     "install the same version of gpupool on both machines",
                                     version_of(magic), version_of(kMagic))};
        }
        return Error{
            ErrorCode::invalid_input,
            fmt::format("not a gpupool frame: it starts with \"{}\", {:#010x} (does the other side speak gpupool?)",
                        printable({reinterpret_cast<const char*>(at), sizeof magic}), magic)};
    }
    if (get<std::uint32_t>(at, 32) != crc32c(in.first<kCheckedBytes>())) {
        return Error{ErrorCode::invalid_input, "a frame header arrived damaged: its CRC does not match"};
    }
    if (const auto reserved = get<std::uint32_t>(at, 36); reserved != 0) {
        return Error{ErrorCode::invalid_input, fmt::format("a frame's reserved field is {:#010x}, not 0", reserved)};
    }
    // The bytes are undamaged: later errors are the peer's.
    FrameHeader header;
    header.payload_bytes = get<std::uint32_t>(at, 4);
    header.sequence = get<std::uint64_t>(at, 8);
    header.acknowledged = get<std::uint64_t>(at, 16);
    const auto type = get<std::uint16_t>(at, 24);
    const auto flags = get<std::uint16_t>(at, 26);
    header.payload_crc = get<std::uint32_t>(at, 28);
    if (header.payload_bytes > kMaxPayloadBytes) {
        return Error{ErrorCode::limit_exceeded, fmt::format("a frame claims {} payload bytes, at most {} are accepted",
                                                            header.payload_bytes, kMaxPayloadBytes)};
    }
    if (type < static_cast<std::uint16_t>(FrameType::hello) || type > static_cast<std::uint16_t>(FrameType::packed)) {
        return Error{ErrorCode::unsupported, fmt::format("frame type {} is not known", type)};
    }
    if (flags != 0) {
        return Error{ErrorCode::unsupported, fmt::format("frame flags {:#06x} are not known", flags)};
    }
    header.type = static_cast<FrameType>(type);
    return header;
}

std::uint32_t payload_crc(FrameType type, std::span<const std::byte> payload) noexcept {
    const std::size_t covered = type == FrameType::bulk     ? sizeof(BulkHeader)
                                : type == FrameType::packed ? sizeof(PackedHeader)
                                                            : payload.size();
    return crc32c(payload.first(std::min(payload.size(), covered)));
}

}  // namespace gpupool::wire
