// Cuts a copy into pieces that fit a staging chunk.
//
// The host side of a shaped copy is packed: rows of WidthInBytes, then slices, without gaps. A piece is a part of one
// row or some rows of one slice, so it is itself a shape, with a contiguous host side.
//
// Threads: one at a time for each cutter.
// Units: bytes.
// Errors: none; packed_bytes() rejects what cannot be copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "protocol/calls/internal.h"

namespace gpupool::worker {

struct Piece {
    std::uint64_t offset = 0;  // in the packed data
    std::size_t bytes = 0;
    std::size_t x_bytes = 0, y = 0, z = 0;  // where it begins in the shape
    std::size_t width_bytes = 0, height = 1, depth = 1;
};

class PieceCutter {
  public:
    explicit PieceCutter(std::uint64_t bytes) : width_(bytes), height_(1), depth_(1), total_(bytes) {}
    explicit PieceCutter(const CopyShape& shape)
        : width_(shape.WidthInBytes), height_(shape.Height), depth_(shape.Depth), total_(width_ * height_ * depth_) {}

    [[nodiscard]] bool done() const { return offset_ == total_; }
    [[nodiscard]] std::uint64_t offset() const { return offset_; }
    [[nodiscard]] std::uint64_t left_bytes() const { return total_ - offset_; }

    Piece next(std::size_t max_bytes) {
        Piece piece;
        piece.offset = offset_;
        const std::uint64_t row = offset_ / width_;
        piece.x_bytes = offset_ % width_;
        piece.y = row % height_;
        piece.z = row / height_;
        if (piece.x_bytes != 0 || width_ > max_bytes) {
            piece.width_bytes = std::min<std::uint64_t>(max_bytes, width_ - piece.x_bytes);
        } else {
            piece.width_bytes = width_;
            piece.height = std::min<std::uint64_t>(max_bytes / width_, height_ - piece.y);
        }
        piece.bytes = piece.width_bytes * piece.height;
        offset_ += piece.bytes;
        return piece;
    }

  private:
    std::uint64_t width_, height_, depth_;
    std::uint64_t total_;
    std::uint64_t offset_ = 0;
};

// False when the sizes overflow or are absurd.
inline bool packed_bytes(const CopyShape& shape, std::uint64_t& bytes) {
    constexpr std::uint64_t kLimit = 1ull << 46;
    const std::uint64_t factors[] = {shape.WidthInBytes, shape.Height, shape.Depth};
    bytes = 1;
    for (const std::uint64_t factor : factors) {
        if (factor != 0 && bytes > kLimit / factor) {
            return false;
        }
        bytes *= factor;
    }
    return true;
}

namespace detail {
inline void narrow(CopyShape& part, const Piece& piece) {
    part.WidthInBytes = piece.width_bytes;
    part.Height = piece.height;
    part.Depth = piece.depth;
}
}  // namespace detail

// `piece` of `shape`, from packed host memory to the shape's destination.
inline CopyShape part_from_host(const CopyShape& shape, const Piece& piece, const std::byte* host) {
    CopyShape part = shape;
    detail::narrow(part, piece);
    part.dstXInBytes += piece.x_bytes;
    part.dstY += piece.y;
    part.dstZ += piece.z;
    part.srcMemoryType = CU_MEMORYTYPE_HOST;
    part.srcHost = host;
    part.srcXInBytes = part.srcY = part.srcZ = 0;
    part.srcLOD = 0;
    part.srcPitch = piece.width_bytes;
    part.srcHeight = piece.height;
    return part;
}

// The same, from the shape's source to packed host memory.
inline CopyShape part_to_host(const CopyShape& shape, const Piece& piece, std::byte* host) {
    CopyShape part = shape;
    detail::narrow(part, piece);
    part.srcXInBytes += piece.x_bytes;
    part.srcY += piece.y;
    part.srcZ += piece.z;
    part.dstMemoryType = CU_MEMORYTYPE_HOST;
    part.dstHost = host;
    part.dstXInBytes = part.dstY = part.dstZ = 0;
    part.dstLOD = 0;
    part.dstPitch = piece.width_bytes;
    part.dstHeight = piece.height;
    return part;
}

}  // namespace gpupool::worker
