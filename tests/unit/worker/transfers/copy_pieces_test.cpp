// Compares copies made in pieces with whole copies: every small shape and piece size, byte by byte.
#include "server/worker/transfers/copy_pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace gpupool::test {
namespace {

using namespace worker;

// Copies between two "device" volumes as the driver does; host memory is a pitched volume too.
void copy(const CopyShape& shape, std::vector<std::byte>& device, std::size_t pitch, std::size_t height) {
    for (std::size_t z = 0; z < shape.Depth; ++z) {
        for (std::size_t y = 0; y < shape.Height; ++y) {
            const bool to_device = shape.srcMemoryType == CU_MEMORYTYPE_HOST;
            std::byte* const place =
                device.data() +
                ((z + (to_device ? shape.dstZ : shape.srcZ)) * height + y + (to_device ? shape.dstY : shape.srcY)) *
                    pitch +
                (to_device ? shape.dstXInBytes : shape.srcXInBytes);
            if (to_device) {
                const auto* host = static_cast<const std::byte*>(shape.srcHost);
                std::memcpy(place, host + (z * shape.srcHeight + y) * shape.srcPitch, shape.WidthInBytes);
            } else {
                auto* host = static_cast<std::byte*>(shape.dstHost);
                std::memcpy(host + (z * shape.dstHeight + y) * shape.dstPitch, place, shape.WidthInBytes);
            }
        }
    }
}

std::vector<std::byte> pattern(std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        data[i] = static_cast<std::byte>(i * 7 + 1);
    }
    return data;
}

void check_shape(std::size_t width, std::size_t height, std::size_t depth, std::size_t max_bytes) {
    constexpr std::size_t kPitch = 12, kHeight = 7, kDepth = 6;
    CopyShape shape{};
    shape.WidthInBytes = width;
    shape.Height = height;
    shape.Depth = depth;
    shape.dstXInBytes = shape.srcXInBytes = 2;
    shape.dstY = shape.srcY = 1;
    shape.dstZ = shape.srcZ = 1;
    std::uint64_t bytes = 0;
    ASSERT_TRUE(packed_bytes(shape, bytes));
    ASSERT_EQ(bytes, width * height * depth);
    const std::vector<std::byte> packed = pattern(bytes);
    std::vector<std::byte> at_once(kPitch * kHeight * kDepth), in_pieces(at_once.size()), back(bytes);

    CopyShape whole = shape;
    whole.srcMemoryType = CU_MEMORYTYPE_HOST;
    whole.srcHost = packed.data();
    whole.srcPitch = width;
    whole.srcHeight = height;
    whole.srcXInBytes = whole.srcY = whole.srcZ = 0;
    copy(whole, at_once, kPitch, kHeight);

    std::uint64_t expected_offset = 0;
    for (PieceCutter cutter(shape); !cutter.done();) {
        const Piece piece = cutter.next(max_bytes);
        ASSERT_EQ(piece.offset, expected_offset);
        ASSERT_GT(piece.bytes, 0u);
        ASSERT_LE(piece.bytes, max_bytes);
        ASSERT_EQ(piece.bytes, piece.width_bytes * piece.height * piece.depth);
        expected_offset += piece.bytes;
        copy(part_from_host(shape, piece, packed.data() + piece.offset), in_pieces, kPitch, kHeight);
        copy(part_to_host(shape, piece, back.data() + piece.offset), in_pieces, kPitch, kHeight);
    }
    ASSERT_EQ(expected_offset, bytes);
    ASSERT_EQ(in_pieces, at_once);
    ASSERT_EQ(back, packed);
}

TEST(CopyPieces, EverySmallShapeMatchesTheWholeCopy) {
    for (std::size_t width = 1; width <= 9; ++width) {
        for (std::size_t height = 1; height <= 5; ++height) {
            for (std::size_t depth = 1; depth <= 4; ++depth) {
                for (std::size_t max_bytes = 1; max_bytes <= 50; ++max_bytes) {
                    ASSERT_NO_FATAL_FAILURE(check_shape(width, height, depth, max_bytes))
                        << width << "x" << height << "x" << depth << " in pieces of " << max_bytes;
                }
            }
        }
    }
}

TEST(CopyPieces, PlainCopies) {
    for (std::uint64_t bytes = 0; bytes <= 70; ++bytes) {
        for (std::size_t max_bytes = 1; max_bytes <= 33; ++max_bytes) {
            std::uint64_t offset = 0;
            for (PieceCutter cutter(bytes); !cutter.done();) {
                const Piece piece = cutter.next(max_bytes);
                ASSERT_EQ(piece.offset, offset);
                ASSERT_EQ(piece.bytes, std::min<std::uint64_t>(max_bytes, bytes - offset));
                offset += piece.bytes;
            }
            ASSERT_EQ(offset, bytes);
        }
    }
}

TEST(CopyPieces, EmptyAndAbsurdShapes) {
    CopyShape shape{};
    std::uint64_t bytes = 1;
    EXPECT_TRUE(packed_bytes(shape, bytes));
    EXPECT_EQ(bytes, 0u);
    EXPECT_TRUE(PieceCutter(shape).done());
    shape.WidthInBytes = shape.Height = shape.Depth = std::size_t{1} << 22;  // 2^66: would wrap to a small number
    EXPECT_FALSE(packed_bytes(shape, bytes));
    shape.WidthInBytes = ~std::size_t{0};
    shape.Height = shape.Depth = 1;
    EXPECT_FALSE(packed_bytes(shape, bytes));
    shape.Height = 0;  // nothing to copy, however wide
    EXPECT_TRUE(!packed_bytes(shape, bytes) || bytes == 0);
}

}  // namespace
}  // namespace gpupool::test
