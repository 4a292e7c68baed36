#include "server/softgpu/api/copy.h"

#include <cstring>

#include "server/softgpu/exec/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr std::size_t max_staged_bytes = std::size_t{64} << 20;

// A kernel may be polling the word that we write, or writing what we read: aligned words move whole.
[[gnu::no_sanitize("thread")]] void copy_bytes(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    auto* d = reinterpret_cast<void*>(to);
    const auto* s = reinterpret_cast<const void*>(from);
    if (bytes == 4 && ((to | from) & 3) == 0) {
        __atomic_store_n(static_cast<std::uint32_t*>(d),
                         __atomic_load_n(static_cast<const std::uint32_t*>(s), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    } else if (bytes == 8 && ((to | from) & 7) == 0) {
        __atomic_store_n(static_cast<std::uint64_t*>(d),
                         __atomic_load_n(static_cast<const std::uint64_t*>(s), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    } else {
        std::memmove(d, s, bytes);
    }
}

std::size_t extent_bytes(std::size_t width, std::size_t height, std::size_t depth, std::size_t pitch,
                         std::size_t slice) {
    return (depth - 1) * slice + (height - 1) * pitch + width;
}

std::size_t from_extent(const Rows& r) {
    return extent_bytes(r.width_bytes, r.height, r.depth, r.from_pitch_bytes, r.from_slice_bytes);
}

bool sane(const Rows& r) {
    constexpr std::size_t most = std::size_t{1} << 46;
    if (r.width_bytes > most || r.height > most || r.depth > most) return false;
    std::size_t cells = 0;
    if (__builtin_mul_overflow(r.height, r.depth, &cells) || __builtin_mul_overflow(cells, r.width_bytes, &cells))
        return false;
    for (const std::size_t pitch : {r.from_pitch_bytes, r.to_pitch_bytes, r.from_slice_bytes, r.to_slice_bytes}) {
        if (pitch > most || (pitch != 0 && (r.height > most / pitch || r.depth > most / pitch))) return false;
    }
    return cells <= most;
}

// Every row of a device side must lie in allocations; gaps between rows need not.
bool reachable(std::uint64_t at, const Rows& r, std::size_t pitch, std::size_t slice) {
    const auto& space = AddressSpace::instance();
    if (space.covers(at, extent_bytes(r.width_bytes, r.height, r.depth, pitch, slice))) return true;
    for (std::size_t z = 0; z < r.depth; ++z) {
        for (std::size_t y = 0; y < r.height; ++y) {
            if (!space.covers(at + z * slice + y * pitch, r.width_bytes)) return false;
        }
    }
    return true;
}

void perform(const Rows& r) {
    const bool flat = r.height == 1 && r.depth == 1;
    if (flat) return copy_bytes(r.to, r.from, r.width_bytes);
    for (std::size_t z = 0; z < r.depth; ++z) {
        for (std::size_t y = 0; y < r.height; ++y) {
            copy_bytes(r.to + z * r.to_slice_bytes + y * r.to_pitch_bytes,
                       r.from + z * r.from_slice_bytes + y * r.from_pitch_bytes, r.width_bytes);
        }
    }
}

Side resolved(Side side, std::uint64_t address) {
    if (side != Side::unified) return side;
    AddressRange range;
    return AddressSpace::instance().find(address, range) ? Side::device : Side::host;
}

bool pinned(std::uint64_t address) {
    AddressRange range;
    return AddressSpace::instance().find(address, range);
}

}  // namespace

CUresult copy_rows(CUstream handle, Rows rows, Side from, Side to, bool wait) {
    SOFTGPU_STREAM(handle, stream);
    if (rows.width_bytes == 0 || rows.height == 0 || rows.depth == 0) return CUDA_SUCCESS;
    if (!sane(rows)) return CUDA_ERROR_INVALID_VALUE;
    if (rows.from == 0 || rows.to == 0) return CUDA_ERROR_INVALID_VALUE;
    from = resolved(from, rows.from);
    to = resolved(to, rows.to);
    if (from == Side::device && !reachable(rows.from, rows, rows.from_pitch_bytes, rows.from_slice_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (to == Side::device && !reachable(rows.to, rows, rows.to_pitch_bytes, rows.to_slice_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    // Pageable sources are taken before the call returns; pageable destinations are complete when it does.
    std::shared_ptr<std::vector<std::uint8_t>> staged;
    if (!wait && from == Side::host && !pinned(rows.from)) {
        if (from_extent(rows) <= max_staged_bytes) {
            staged = std::make_shared<std::vector<std::uint8_t>>(from_extent(rows));
            std::memcpy(staged->data(), reinterpret_cast<const void*>(rows.from), staged->size());
            rows.from = reinterpret_cast<std::uint64_t>(staged->data());
        } else {
            wait = true;
        }
    }
    if (!wait && to == Side::host && !pinned(rows.to)) wait = true;
    const std::uint64_t sequence = submit_ordered(stream, [rows, from, to, staged]() -> CUresult {
        // What was freed in between is a fault, as for a kernel.
        if (from == Side::device && !reachable(rows.from, rows, rows.from_pitch_bytes, rows.from_slice_bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (to == Side::device && !reachable(rows.to, rows, rows.to_pitch_bytes, rows.to_slice_bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        perform(rows);
        return CUDA_SUCCESS;
    });
    if (!wait) return CUDA_SUCCESS;
    stream->wait(sequence);
    return stream->context.status();
}

CUresult fill_rows(CUstream handle, std::uint64_t to, std::uint32_t value, unsigned element_bytes, std::size_t width,
                   std::size_t height, std::size_t pitch_bytes, bool wait) {
    SOFTGPU_STREAM(handle, stream);
    if (to % element_bytes != 0 || (height > 1 && pitch_bytes % element_bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    if (width > (std::size_t{1} << 46)) return CUDA_ERROR_INVALID_VALUE;
    Rows rows;
    rows.to = to;
    rows.width_bytes = width * element_bytes;
    rows.height = height;
    rows.to_pitch_bytes = pitch_bytes;
    if (!sane(rows) || (height > 1 && pitch_bytes < rows.width_bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (!reachable(to, rows, pitch_bytes, 0)) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t sequence = submit_ordered(stream, [=]() -> CUresult {
        if (!reachable(rows.to, rows, pitch_bytes, 0)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (std::size_t y = 0; y < height; ++y) {
            const std::uint64_t row = rows.to + y * pitch_bytes;
            if (element_bytes == 1) {
                std::memset(reinterpret_cast<void*>(row), static_cast<int>(value), width);
            } else {
                for (std::size_t x = 0; x < width; ++x) {
                    if (element_bytes == 2)
                        __atomic_store_n(reinterpret_cast<std::uint16_t*>(row) + x, static_cast<std::uint16_t>(value),
                                         __ATOMIC_RELAXED);
                    else
                        __atomic_store_n(reinterpret_cast<std::uint32_t*>(row) + x, value, __ATOMIC_RELAXED);
                }
            }
        }
        return CUDA_SUCCESS;
    });
    if (!wait) return CUDA_SUCCESS;
    stream->wait(sequence);
    return stream->context.status();
}

}  // namespace gpupool::softgpu
