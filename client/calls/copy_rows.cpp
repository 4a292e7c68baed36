// Copies of rows: two- and three-dimensional ones, and those with arrays.

#include <cstring>
#include <vector>

#include "client/calls/copy_parts.h"
#include "client/calls/copy_shapes.h"
#include "client/core/transfers/packed_rows.h"

namespace gpupool::client::entry {
namespace {

// Calls visit(place, done, count) for each part of a row that has some of the packed bytes [offset, offset + bytes):
// `count` bytes at `place`, which follow `done` earlier ones.
template <class Visit>
void each_part(const CUDA_MEMCPY3D& c, const HostSide& side, std::uint64_t offset, std::size_t bytes, Visit visit) {
    each_part_of_rows(c.WidthInBytes, c.Height, offset, bytes,
                      [&](std::uint64_t row, std::uint64_t slice, std::uint64_t within, std::size_t done,
                          std::size_t count) { visit(side.row(row, slice) + within, done, count); });
}

// The address range from the beginning of the first row to the end of the last one.
std::pair<std::uint64_t, std::uint64_t> extent_of(const CUDA_MEMCPY3D& c, const HostSide& side) {
    return {reinterpret_cast<std::uint64_t>(side.row(0, 0)),
            reinterpret_cast<std::uint64_t>(side.row(c.Height - 1, c.Depth - 1)) + c.WidthInBytes};
}

// `late`: the rows are read when the copy is ready in its stream.
CUresult shaped_to_device(Session& s, const CUDA_MEMCPY3D& c, std::size_t bytes, CUstream stream, bool late) {
    const HostSide side = source_of(c);
    const auto pack = [c, side](std::uint64_t offset, std::span<std::byte> packed) {
        each_part(c, side, offset, packed.size(), [&](const char* place, std::size_t done, std::size_t count) {
            std::memcpy(packed.data() + done, place, count);
        });
    };
    std::uint64_t transfer = 0;
    if (late) {
        const auto [lowest, highest] = extent_of(c, side);
        transfer = s.transfers.begin_upload(bytes, lowest, highest, pack);
    } else {
        if (bytes <= codec::kMaxInlineBytes) {
            std::vector<std::byte>& packed = this_thread().packed_rows;
            packed.resize(bytes);
            pack(0, packed);
            give_found_to_gpu(s, packed, c.dstDevice + c.dstXInBytes);
            return remote<calls::gpCopyShapedToDevice>(
                &c, std::uint64_t{0}, reinterpret_cast<const unsigned char*>(packed.data()), bytes, stream);
        }
        std::vector<std::byte> packed(bytes);
        pack(0, packed);
        give_found_to_gpu(s, packed, c.dstDevice + c.dstXInBytes);
        transfer = s.transfers.begin_upload(std::move(packed));
    }
    const CUresult result = remote<calls::gpCopyShapedToDevice>(
        &c, transfer, static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    trace::add_bytes_sent(bytes);
    if (result != CUDA_SUCCESS) {
        s.transfers.cancel(transfer);
    }
    return result;
}

CUresult shaped_from_device(Session& s, const CUDA_MEMCPY3D& c, std::size_t bytes, CUstream stream, bool wait) {
    const HostSide side = destination_of(c);
    const auto [lowest, highest] = extent_of(c, side);
    const auto unpack = [c, side](std::uint64_t offset, std::span<const std::byte> packed) {
        each_part(c, side, offset, packed.size(), [&](char* place, std::size_t done, std::size_t count) {
            std::memcpy(place, packed.data() + done, count);
        });
    };
    const std::uint64_t transfer = s.transfers.begin_download(bytes, lowest, highest, unpack);
    trace::add_bytes_received(bytes);
    return send_copy_out<calls::gpCopyShapedFromDevice>(s, transfer, wait, stream, &c);
}

// The client makes copies from host to host memory, and reads a source that must be read at once. In others the GPU
// itself reads and writes shared host memory, in stream order.
void choose_sides(const Session& s, CUDA_MEMCPY3D& c, Reads reads) {
    const auto is_on_host = [&s](CUmemorytype type, CUdeviceptr device) {
        return type == CU_MEMORYTYPE_HOST || (type == CU_MEMORYTYPE_DEVICE && is_gpus_host_memory(s, device));
    };
    const auto take = [&s](CUmemorytype& type, CUdeviceptr device, auto& host) {
        if (type == CU_MEMORYTYPE_DEVICE) {
            type = CU_MEMORYTYPE_HOST;
            host = reinterpret_cast<void*>(s.host_mirrors.program_address(device));
        }
    };
    const bool from_host = is_on_host(c.srcMemoryType, c.srcDevice);
    if (from_host && (reads == Reads::at_once || is_on_host(c.dstMemoryType, c.dstDevice))) {
        take(c.srcMemoryType, c.srcDevice, c.srcHost);
    }
    if (from_host && is_on_host(c.dstMemoryType, c.dstDevice)) {
        take(c.dstMemoryType, c.dstDevice, c.dstHost);
        return;
    }
    const auto use = [&s](CUmemorytype& type, CUdeviceptr& device, const void* host) {
        if (type == CU_MEMORYTYPE_HOST && s.host_mirrors.is_shared(address_of(host))) {
            type = CU_MEMORYTYPE_DEVICE;
            device = address_of(host);
        }
    };
    if (reads == Reads::in_order) {
        use(c.srcMemoryType, c.srcDevice, c.srcHost);
    }
    use(c.dstMemoryType, c.dstDevice, c.dstHost);
}

CUresult copy_rows_on_host(const CUDA_MEMCPY3D& c, std::size_t bytes, CUstream stream) {
    const CUresult result = synchronize_stream(stream);
    if (result == CUDA_SUCCESS) {
        const HostSide from = source_of(c), to = destination_of(c);
        each_part_of_rows(c.WidthInBytes, c.Height, 0, bytes, [&](auto row, auto slice, auto, auto, auto) {
            std::memmove(to.row(row, slice), from.row(row, slice), c.WidthInBytes);
        });
    }
    return result;
}

bool side_is_seen_at_once(const Session& s, CUmemorytype type, CUdeviceptr address) {
    return type == CU_MEMORYTYPE_DEVICE && is_seen_at_once(s, address);
}

}  // namespace

CUresult copy_shaped(const CUDA_MEMCPY3D& given, CUstream stream, Waiting waiting, Reads reads) {
    Session* s = nullptr;
    if (const CUresult result = begin_copy(s); result != CUDA_SUCCESS) {
        return result;
    }
    CUDA_MEMCPY3D c = given;
    resolve_unified(*s, c);
    if (is_empty(c)) {
        return CUDA_SUCCESS;
    }
    if (is_too_large(c)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_capturing(*s, stream)) {
        return capture_copy(c, false, stream);
    }
    if (!may_hold(*s, c)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    choose_sides(*s, c, reads);
    const bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
    const auto overlap = [&](CUmemorytype type, std::size_t pitch_bytes, std::size_t x_bytes) {
        const std::size_t least = c.WidthInBytes + (type == CU_MEMORYTYPE_HOST ? x_bytes : 0);
        return type != CU_MEMORYTYPE_ARRAY && c.Height > 1 && pitch_bytes != 0 && pitch_bytes < least;
    };
    if (overlap(c.srcMemoryType, c.srcPitch, c.srcXInBytes) || overlap(c.dstMemoryType, c.dstPitch, c.dstXInBytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t bytes = c.WidthInBytes * c.Height * c.Depth;
    const bool asynchronous = waiting == Waiting::as_asynchronous;
    if (from_host && to_host) {
        return copy_rows_on_host(c, bytes, stream);
    }
    if (from_host) {
        const auto [lowest, highest] = extent_of(c, source_of(c));
        Reading reading;
        const CUresult awaited = reads == Reads::at_once
                                     ? CUDA_SUCCESS
                                     : await_writers(*s, c.srcHost, reinterpret_cast<const void*>(lowest),
                                                     highest - lowest, stream, asynchronous, reading);
        if (awaited != CUDA_SUCCESS) {
            return awaited;
        }
        const CUresult sent = shaped_to_device(*s, c, bytes, stream, reading.late);
        const bool seen = !asynchronous && (others_see() || side_is_seen_at_once(*s, c.dstMemoryType, c.dstDevice));
        return end_copy(sent, seen, stream);
    }
    if (to_host) {
        return shaped_from_device(*s, c, bytes, stream, !asynchronous || !is_pinned(*s, c.dstHost));
    }
    const auto is_allocated = [&](CUmemorytype type, CUdeviceptr address) {
        return type == CU_MEMORYTYPE_ARRAY || !is_idle(*s, address);
    };
    const CUresult sent = remote_or_ask<calls::gpCopyShapedOnDevice>(
        is_allocated(c.srcMemoryType, c.srcDevice) && is_allocated(c.dstMemoryType, c.dstDevice), &c, stream);
    const bool seen = !asynchronous && (side_is_seen_at_once(*s, c.srcMemoryType, c.srcDevice) ||
                                        side_is_seen_at_once(*s, c.dstMemoryType, c.dstDevice));
    return end_copy(sent, seen, stream);
}

}  // namespace gpupool::client::entry
