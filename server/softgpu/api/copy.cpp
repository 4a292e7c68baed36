#include "server/softgpu/api/copy.h"

#include <cstring>

#include "server/softgpu/api/array.h"
#include "server/softgpu/api/settings.h"
#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/graph/capture.h"
#include "server/softgpu/graph/memory.h"

namespace gpupool::softgpu {
namespace {

constexpr std::size_t kMaxStagedBytes = std::size_t{64} << 20;

// A kernel may poll the word that we write, or write the word that we read, so aligned words are copied as a whole.
__attribute__((no_sanitize("thread"))) void copy_bytes(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
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
    constexpr std::size_t kMost = std::size_t{1} << 46;
    if (r.width_bytes > kMost || r.height > kMost || r.depth > kMost) {
        return false;
    }
    std::size_t cells = 0;
    if (__builtin_mul_overflow(r.height, r.depth, &cells) || __builtin_mul_overflow(cells, r.width_bytes, &cells)) {
        return false;
    }
    for (const std::size_t pitch : {r.from_pitch_bytes, r.to_pitch_bytes, r.from_slice_bytes, r.to_slice_bytes}) {
        if (pitch > kMost || (pitch != 0 && (r.height > kMost / pitch || r.depth > kMost / pitch))) {
            return false;
        }
    }
    return cells <= kMost;
}

// Every row of a device side must lie in allocations; the gaps between rows need not.
bool reachable(std::uint64_t at, const Rows& r, std::size_t pitch, std::size_t slice) {
    const auto& space = AddressSpace::instance();
    const std::size_t extent = extent_bytes(r.width_bytes, r.height, r.depth, pitch, slice);
    if (space.covers(at, extent)) {
        return true;
    }
    for (std::size_t z = 0; z < r.depth; ++z) {
        for (std::size_t y = 0; y < r.height; ++y) {
            if (!space.covers(at + z * slice + y * pitch, r.width_bytes)) {
                return false;
            }
        }
    }
    return true;
}

// Also true for memory that a graph will have allocated when the copy runs.
bool will_be_reachable(std::uint64_t at, const Rows& r, std::size_t pitch, std::size_t slice) {
    return reachable(at, r, pitch, slice) ||
           GraphMemory::reserves(at, extent_bytes(r.width_bytes, r.height, r.depth, pitch, slice));
}

// Memory ends where it was allocated or registered to end, though other memory may follow. Only mappings side by side
// count as one. Nothing is known of other host memory.
bool leaves_known_memory(std::uint64_t at, const Rows& r, std::size_t pitch, std::size_t slice) {
    Allocation found;
    return state().allocations.find(at, found) && found.kind != MemoryKind::mapped &&
           extent_bytes(r.width_bytes, r.height, r.depth, pitch, slice) > found.begin + found.size_bytes - at;
}

void perform(const Rows& r) {
    const bool flat = r.height == 1 && r.depth == 1;
    if (flat) {
        return copy_bytes(r.to, r.from, r.width_bytes);
    }
    for (std::size_t z = 0; z < r.depth; ++z) {
        for (std::size_t y = 0; y < r.height; ++y) {
            copy_bytes(r.to + z * r.to_slice_bytes + y * r.to_pitch_bytes,
                       r.from + z * r.from_slice_bytes + y * r.from_pitch_bytes, r.width_bytes);
        }
    }
}

Side resolved(Side side, std::uint64_t address) {
    if (side != Side::unified) {
        return side;
    }
    AddressRange range;
    const bool known = AddressSpace::instance().find(address, range) || GraphMemory::reserves(address, 1);
    return known ? Side::device : Side::host;
}

bool pinned(std::uint64_t address) {
    AddressRange range;
    return AddressSpace::instance().find(address, range);
}

// One side of a copy description.
struct Place {
    CUmemorytype type;
    std::uint64_t host;
    CUdeviceptr device;
    CUarray array;
    std::size_t x_bytes, y, z, level, pitch_bytes, height;
};

CUresult place_side(const Place& place, const Rows& rows, std::uint64_t& at, std::size_t& pitch, std::size_t& slice,
                    Side& side) {
    if (place.type == CU_MEMORYTYPE_ARRAY) {
        const auto array = state().arrays.find(place.array);
        if (array == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        const auto beyond = [](std::size_t begin, std::size_t count, std::size_t limit) {
            return begin > limit || count > limit - begin;
        };
        if (place.level != 0 || beyond(place.x_bytes, rows.width_bytes, array->row_bytes) ||
            beyond(place.y, rows.height, array->height) || beyond(place.z, rows.depth, array->depth) ||
            place.x_bytes % array->element_bytes != 0 || rows.width_bytes % array->element_bytes != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        side = Side::device;
        at = array->address;
        pitch = array->row_bytes;
        slice = pitch * array->height;
    } else {
        switch (place.type) {
            case CU_MEMORYTYPE_HOST: at = place.host, side = Side::host; break;
            case CU_MEMORYTYPE_DEVICE: at = place.device, side = Side::device; break;
            case CU_MEMORYTYPE_UNIFIED: at = place.device, side = Side::unified; break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        pitch = place.pitch_bytes != 0 ? place.pitch_bytes : rows.width_bytes;
        const std::size_t height = place.height != 0 ? place.height : rows.height;
        if (__builtin_mul_overflow(pitch, height, &slice)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (rows.height > 1 && pitch < rows.width_bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (rows.depth > 1 && height < rows.height) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    at += place.z * slice + place.y * pitch + place.x_bytes;
    return CUDA_SUCCESS;
}

Rows rows_of(const CUDA_MEMSET_NODE_PARAMS& fill) {
    Rows rows;
    rows.to = fill.dst;
    rows.width_bytes = fill.width * fill.elementSize;
    rows.height = fill.height;
    rows.to_pitch_bytes = fill.pitch;
    return rows;
}

}  // namespace

CUresult place_copy(const CUDA_MEMCPY3D& d, Copy& copy) {
    Rows& rows = copy.rows;
    rows.width_bytes = d.WidthInBytes, rows.height = d.Height, rows.depth = d.Depth;
    const Place from{d.srcMemoryType, reinterpret_cast<std::uint64_t>(d.srcHost),
                     d.srcDevice,     d.srcArray,
                     d.srcXInBytes,   d.srcY,
                     d.srcZ,          d.srcLOD,
                     d.srcPitch,      d.srcHeight};
    const Place to{d.dstMemoryType, reinterpret_cast<std::uint64_t>(d.dstHost),
                   d.dstDevice,     d.dstArray,
                   d.dstXInBytes,   d.dstY,
                   d.dstZ,          d.dstLOD,
                   d.dstPitch,      d.dstHeight};
    const CUresult error = place_side(from, rows, rows.from, rows.from_pitch_bytes, rows.from_slice_bytes, copy.from);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    return place_side(to, rows, rows.to, rows.to_pitch_bytes, rows.to_slice_bytes, copy.to);
}

CUDA_MEMCPY3D describe_copy(const Copy& copy) {
    const auto type = [](Side side) {
        return side == Side::host     ? CU_MEMORYTYPE_HOST
               : side == Side::device ? CU_MEMORYTYPE_DEVICE
                                      : CU_MEMORYTYPE_UNIFIED;
    };
    const auto height = [&](std::size_t pitch, std::size_t slice) { return pitch == 0 ? 0 : slice / pitch; };
    const Rows& rows = copy.rows;
    CUDA_MEMCPY3D d{};
    d.srcMemoryType = type(copy.from);
    d.srcHost = copy.from == Side::host ? reinterpret_cast<const void*>(rows.from) : nullptr;
    d.srcDevice = copy.from == Side::host ? 0 : rows.from;
    d.srcPitch = rows.from_pitch_bytes;
    d.srcHeight = height(rows.from_pitch_bytes, rows.from_slice_bytes);
    d.dstMemoryType = type(copy.to);
    d.dstHost = copy.to == Side::host ? reinterpret_cast<void*>(rows.to) : nullptr;
    d.dstDevice = copy.to == Side::host ? 0 : rows.to;
    d.dstPitch = rows.to_pitch_bytes;
    d.dstHeight = height(rows.to_pitch_bytes, rows.to_slice_bytes);
    d.WidthInBytes = rows.width_bytes;
    d.Height = rows.height;
    d.Depth = rows.depth;
    return d;
}

CUresult check_copy(Copy& copy) {
    const Rows& rows = copy.rows;
    if (rows.width_bytes == 0 || rows.height == 0 || rows.depth == 0) {
        return CUDA_SUCCESS;
    }
    if (!sane(rows) || rows.from == 0 || rows.to == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    copy.from = resolved(copy.from, rows.from);
    copy.to = resolved(copy.to, rows.to);
    if (copy.from == Side::device &&
        !will_be_reachable(rows.from, rows, rows.from_pitch_bytes, rows.from_slice_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (copy.to == Side::device && !will_be_reachable(rows.to, rows, rows.to_pitch_bytes, rows.to_slice_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool leaves = leaves_known_memory(rows.from, rows, rows.from_pitch_bytes, rows.from_slice_bytes) ||
                        leaves_known_memory(rows.to, rows, rows.to_pitch_bytes, rows.to_slice_bytes);
    return leaves ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

namespace {

// Pinned memory is recognized by its address, even if the call declared it as pageable or as device memory.
bool on_host(Side side, std::uint64_t address) {
    Allocation found;
    return side == Side::host || (state().allocations.find(address, found) && found.on_host());
}

bool crosses(const Copy& copy) {
    return on_host(copy.from, copy.rows.from) != on_host(copy.to, copy.rows.to);
}

}  // namespace

CUresult run_copy(const Copy& copy, const Context& context) {
    const Rows& rows = copy.rows;
    if (rows.width_bytes == 0 || rows.height == 0 || rows.depth == 0) {
        return CUDA_SUCCESS;
    }
    // As for a kernel, memory that was freed meanwhile is a fault.
    if (copy.from == Side::device && !reachable(rows.from, rows, rows.from_pitch_bytes, rows.from_slice_bytes)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (copy.to == Side::device && !reachable(rows.to, rows, rows.to_pitch_bytes, rows.to_slice_bytes)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    const auto begin = Clock::now();
    perform(rows);
    if (settings().copy_bytes_per_second != 0 && crosses(copy)) {
        idle_until(end_of_copy(begin, rows.width_bytes * rows.height * rows.depth), context.stop);
    }
    return CUDA_SUCCESS;
}

namespace {

// `staged`: a source in host memory is read now.
CUresult enqueue(const StreamPtr& stream, Copy copy, bool staged, bool wait) {
    Rows& rows = copy.rows;
    std::shared_ptr<std::vector<std::uint8_t>> data;
    if (staged && !wait) {
        if (from_extent(rows) <= kMaxStagedBytes) {
            data = std::make_shared<std::vector<std::uint8_t>>(from_extent(rows));
            std::memcpy(data->data(), reinterpret_cast<const void*>(rows.from), data->size());
            rows.from = reinterpret_cast<std::uint64_t>(data->data());
        } else {
            wait = true;
        }
    }
    SharedLock submitting(stream->context.submission_mutex);
    const std::uint64_t sequence = submit_ordered(
        stream, [copy, data, context = &stream->context]() -> CUresult { return run_copy(copy, *context); });
    submitting.unlock();
    if (!wait) {
        return CUDA_SUCCESS;
    }
    stream->wait(sequence);
    return stream->context.status();
}

CUresult submit(const StreamPtr& stream, const Copy& copy, bool wait) {
    const Rows& rows = copy.rows;
    if (rows.width_bytes == 0 || rows.height == 0 || rows.depth == 0) {
        return CUDA_SUCCESS;
    }
    // Pageable sources are read before the call returns. Copies to pageable destinations, and from host to host memory,
    // are complete when it returns.
    wait = wait || (on_host(copy.from, rows.from) && on_host(copy.to, rows.to)) ||
           (copy.to == Side::host && !pinned(rows.to));
    return enqueue(stream, copy, copy.from == Side::host && !pinned(rows.from), wait);
}

}  // namespace

namespace {

// Outside of graphs, memory of a graph is there only while it is allocated.
CUresult submit_now(const StreamPtr& stream, const Copy& copy, bool wait) {
    const bool idle = (copy.from == Side::device && GraphMemory::is_idle(copy.rows.from)) ||
                      (copy.to == Side::device && GraphMemory::is_idle(copy.rows.to));
    return idle ? CUDA_ERROR_INVALID_VALUE : submit(stream, copy, wait);
}

}  // namespace

CUresult submit_copy(CUstream handle, const CUDA_MEMCPY3D& description, bool wait) {
    SOFTGPU_STREAM(handle, stream);
    Copy copy;
    if (const CUresult error = place_copy(description, copy); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult error = check_copy(copy); error != CUDA_SUCCESS) {
        return error;
    }
    CUresult result;
    if (captured(
            stream, [&] { return copy_payload(description, stream->context); }, result)) {
        return result;
    }
    return submit_now(stream, copy, wait);
}

CUresult submit_rows(CUstream handle, const Rows& rows, Side from, Side to, bool wait) {
    SOFTGPU_STREAM(handle, stream);
    Copy copy{rows, from, to};
    if (const CUresult error = check_copy(copy); error != CUDA_SUCCESS) {
        return error;
    }
    CUresult result;
    if (captured(
            stream, [&] { return copy_payload(describe_copy(copy), stream->context); }, result)) {
        return result;
    }
    return submit_now(stream, copy, wait);
}

CUresult submit_batched(const StreamPtr& stream, const Copy& copy, CUmemcpySrcAccessOrder order) {
    const bool pageable = copy.from == Side::host && !pinned(copy.rows.from);
    const bool on_host_only = on_host(copy.from, copy.rows.from) && on_host(copy.to, copy.rows.to);
    switch (order) {
        case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: return enqueue(stream, copy, false, pageable && !on_host_only);
        case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL: return enqueue(stream, copy, pageable, !pageable);
        default: return enqueue(stream, copy, pageable && !on_host_only, false);
    }
}

CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& fill) {
    const unsigned element = fill.elementSize;
    if (element != 1 && element != 2 && element != 4) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fill.dst % element != 0 || (fill.height > 1 && fill.pitch % element != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fill.width == 0 || fill.height == 0) {
        return CUDA_SUCCESS;
    }
    if (fill.width > (std::size_t{1} << 46)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Rows rows = rows_of(fill);
    if (!sane(rows) || (fill.height > 1 && fill.pitch < rows.width_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return will_be_reachable(rows.to, rows, fill.pitch, 0) && !leaves_known_memory(rows.to, rows, fill.pitch, 0)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS& fill) {
    if (fill.width == 0 || fill.height == 0) {
        return CUDA_SUCCESS;
    }
    if (!reachable(fill.dst, rows_of(fill), fill.pitch, 0)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (std::size_t y = 0; y < fill.height; ++y) {
        const std::uint64_t row = fill.dst + y * fill.pitch;
        if (fill.elementSize == 1) {
            std::memset(reinterpret_cast<void*>(row), static_cast<int>(fill.value), fill.width);
            continue;
        }
        for (std::size_t x = 0; x < fill.width; ++x) {
            if (fill.elementSize == 2) {
                __atomic_store_n(reinterpret_cast<std::uint16_t*>(row) + x, static_cast<std::uint16_t>(fill.value),
                                 __ATOMIC_RELAXED);
            } else {
                __atomic_store_n(reinterpret_cast<std::uint32_t*>(row) + x, fill.value, __ATOMIC_RELAXED);
            }
        }
    }
    return CUDA_SUCCESS;
}

bool is_seen_at_once(std::uint64_t address) {
    Allocation found;
    return state().allocations.find(address, found) &&
           (found.on_host() || found.kind == MemoryKind::managed || found.sync_memops);
}

CUresult submit_fill(CUstream handle, const CUDA_MEMSET_NODE_PARAMS& fill, bool wait) {
    SOFTGPU_STREAM(handle, stream);
    if (const CUresult error = check_fill(fill); error != CUDA_SUCCESS) {
        return error;
    }
    CUresult result;
    if (captured(
            stream, [&] { return fill_payload(fill, stream->context); }, result)) {
        return result;
    }
    if (fill.width == 0 || fill.height == 0) {
        return CUDA_SUCCESS;
    }
    if (GraphMemory::is_idle(fill.dst)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t sequence = submit_ordered(stream, [fill]() -> CUresult { return run_fill(fill); });
    if (!wait) {
        return CUDA_SUCCESS;
    }
    stream->wait(sequence);
    return stream->context.status();
}

}  // namespace gpupool::softgpu
