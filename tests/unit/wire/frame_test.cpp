#include "protocol/wire/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

namespace gpupool::wire {
namespace {

using Encoded = std::array<std::byte, kHeaderBytes>;

Encoded encoded(const FrameHeader& header) {
    Encoded bytes;
    encode(header, bytes);
    return bytes;
}

FrameHeader example() {
    return {.payload_bytes = 0x123456,
            .sequence = 0x1122334455667788,
            .acknowledged = 0x99aabbccddeeff00,
            .type = FrameType::bulk,
            .payload_crc = 0xdeadbeef};
}

TEST(Frame, DecodesWhatItEncodes) {
    const auto decoded = decode(encoded(example()));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(decoded->payload_bytes, example().payload_bytes);
    EXPECT_EQ(decoded->sequence, example().sequence);
    EXPECT_EQ(decoded->acknowledged, example().acknowledged);
    EXPECT_EQ(decoded->type, example().type);
    EXPECT_EQ(decoded->payload_crc, example().payload_crc);
}

// The layout that the header promises, byte by byte; a change breaks every peer.
TEST(Frame, LayoutIsPinned) {
    const auto bytes = encoded(example());
    const std::array<std::uint8_t, 32> expected = {'G',  'P',  'F',  '1',  0x56, 0x34, 0x12, 0x00, 0x88, 0x77, 0x66,
                                                   0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb,
                                                   0xaa, 0x99, 0x06, 0x00, 0x00, 0x00, 0xef, 0xbe, 0xad, 0xde};
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), expected.size()), 0);
    std::uint32_t crc = 0;
    std::memcpy(&crc, bytes.data() + 32, sizeof(crc));
    EXPECT_EQ(crc, crc32c(std::span<const std::byte>(bytes).first(32)));
    EXPECT_TRUE(bytes[36] == std::byte{0} && bytes[39] == std::byte{0});
}

TEST(Frame, EveryFlippedBitIsDetected) {
    const auto good = encoded(example());
    for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
        auto bytes = good;
        bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        const auto decoded = decode(bytes);
        ASSERT_FALSE(decoded.ok()) << "bit " << bit;
        EXPECT_EQ(decoded.error().code, ErrorCode::invalid_input) << "bit " << bit;
    }
}

TEST(Frame, OtherFormatVersionIsNamed) {
    auto bytes = encoded(example());
    bytes[3] = std::byte{'2'};
    const auto decoded = decode(bytes);
    ASSERT_FALSE(decoded.ok());
    EXPECT_NE(decoded.error().message.find("format 2, this side knows format 1"), std::string::npos)
        << decoded.error().message;
    bytes[2] = std::byte{'X'};
    EXPECT_NE(decode(bytes).error().message.find("not a gpupool frame"), std::string::npos);
}

TEST(Frame, PayloadLimitIsExact) {
    auto header = example();
    header.payload_bytes = kMaxPayloadBytes;
    EXPECT_TRUE(decode(encoded(header)).ok());
    header.payload_bytes = kMaxPayloadBytes + 1;
    const auto decoded = decode(encoded(header));
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().code, ErrorCode::limit_exceeded);
}

TEST(Frame, OnlyKnownTypes) {
    for (unsigned type = 0; type < 20; ++type) {
        auto header = example();
        header.type = static_cast<FrameType>(type);
        const bool known = type >= 1 && type <= 10;
        EXPECT_EQ(decode(encoded(header)).ok(), known) << "type " << type;
    }
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

TEST(Crc32c, KnownValues) {  // RFC 3720, B.4, and the usual check string
    EXPECT_EQ(crc32c({}), 0u);
    EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
    EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
    EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
    EXPECT_EQ(crc32c_portable(bytes_of("123456789")), 0xe3069283u);
}

// The instruction's code works in blocks of several kilobytes, so sizes around those are tested, at every alignment.
TEST(Crc32c, InstructionAndTableAgree) {
    std::vector<std::byte> data(20'000);
    std::uint32_t state = 1;
    for (auto& byte : data) {
        byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
    }
    const std::span<const std::byte> all(data);
    for (const std::size_t bytes : {0, 1, 7, 8, 9, 63, 1024, 3071, 3072, 3073, 6144, 6151, 9215, 9216, 19'000}) {
        for (std::size_t offset = 0; offset < 9; ++offset) {
            const auto part = all.subspan(offset, bytes);
            ASSERT_EQ(crc32c(part), crc32c_portable(part)) << bytes << " bytes at " << offset;
        }
    }
}

TEST(Crc32c, InPieces) {
    const auto text = bytes_of("the quick brown fox jumps over the lazy dog");
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        EXPECT_EQ(crc32c(text.subspan(cut), crc32c(text.first(cut))), crc32c(text));
    }
}

}  // namespace
}  // namespace gpupool::wire
