#include "server/worker/memory/array_memory.h"

#include <algorithm>
#include <bit>

namespace gpupool::worker {
namespace {

constexpr std::uint64_t kTileBytes = 64, kTileRows = 8, kMaxTilesTogether = 16;
constexpr std::uint64_t kPage = 2u << 20;
constexpr unsigned kMaxLevels = 64;

// Texels of compressed formats stand in blocks.
struct Texels {
    unsigned side = 1;         // of a block
    std::uint64_t bytes = 16;  // of a block; the largest for an unknown format
};

Texels texels_of(CUarray_format format, unsigned channels) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return {1, channels};
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return {1, std::uint64_t{2} * channels};
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return {1, std::uint64_t{4} * channels};
        case CU_AD_FORMAT_BC1_UNORM:
        case CU_AD_FORMAT_BC1_UNORM_SRGB:
        case CU_AD_FORMAT_BC4_UNORM:
        case CU_AD_FORMAT_BC4_SNORM: return {4, 8};
        case CU_AD_FORMAT_BC2_UNORM:
        case CU_AD_FORMAT_BC2_UNORM_SRGB:
        case CU_AD_FORMAT_BC3_UNORM:
        case CU_AD_FORMAT_BC3_UNORM_SRGB:
        case CU_AD_FORMAT_BC5_UNORM:
        case CU_AD_FORMAT_BC5_SNORM:
        case CU_AD_FORMAT_BC6H_UF16:
        case CU_AD_FORMAT_BC6H_SF16:
        case CU_AD_FORMAT_BC7_UNORM:
        case CU_AD_FORMAT_BC7_UNORM_SRGB: return {4, 16};
        default: return {};
    }
}

// Rounds up to a multiple of `step`. On overflow returns the largest value, which the next multiplication detects.
std::uint64_t saturating_round_up(std::uint64_t value, std::uint64_t step) {
    const std::uint64_t whole = value / step + (value % step != 0 ? 1 : 0);
    return whole > ~std::uint64_t{0} / step ? ~std::uint64_t{0} : whole * step;
}

// How many tiles, or slices of tiles, the driver keeps together if there are `count`.
std::uint64_t together(std::uint64_t count) {
    return std::bit_ceil(std::min(std::max<std::uint64_t>(count, 1), kMaxTilesTogether));
}

// False on overflow.
bool add_level(const CUDA_ARRAY3D_DESCRIPTOR& array, bool layered, std::uint64_t& total) {
    const Texels texels = texels_of(array.Format, std::max(1u, array.NumChannels));
    const auto blocks = [&](std::size_t extent) {
        return std::max<std::uint64_t>(1, extent / texels.side + (extent % texels.side != 0 ? 1 : 0));
    };
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(blocks(array.Width), texels.bytes, &bytes)) {
        return false;
    }
    bytes = saturating_round_up(bytes, kTileBytes);
    const std::uint64_t depth = std::max<std::uint64_t>(1, array.Depth);
    const std::uint64_t slices_together = layered ? 1 : together(depth);
    std::uint64_t rows = saturating_round_up(blocks(array.Height), kTileRows);
    if (slices_together < kMaxTilesTogether / 2) {
        rows = saturating_round_up(rows, kTileRows * together(rows / kTileRows));
    }
    return !__builtin_mul_overflow(bytes, rows, &bytes) &&
           !__builtin_mul_overflow(bytes, saturating_round_up(depth, slices_together), &bytes) &&
           !__builtin_add_overflow(total, bytes, &total);
}

}  // namespace

std::optional<std::uint64_t> array_bytes(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels) {
    if ((array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
        return 0;  // the program maps its memory later, which is counted there
    }
    const bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    std::uint64_t total = 0;
    for (unsigned level = 0; level < std::clamp(levels, 1u, kMaxLevels); ++level) {
        if (!add_level(array, layered, total)) {
            return std::nullopt;
        }
        array.Width /= 2;
        array.Height /= 2;
        array.Depth = layered ? array.Depth : array.Depth / 2;
    }
    return total > kPage / 2 ? saturating_round_up(total, kPage) : kPage / (kPage / total);
}

}  // namespace gpupool::worker
