#include "client/calls/copy_shapes.h"

#include "client/core/session/runtime.h"
#include "protocol/calls/graph_node.h"

namespace gpupool::client {
namespace {

// Bytes from the base to the end of the last row.
std::uint64_t extent(const CUDA_MEMCPY3D& c, const HostSide& side) {
    return static_cast<std::uint64_t>(side.row(c.Height - 1, c.Depth - 1) - side.base) + c.WidthInBytes;
}

std::uint64_t name_of(const CUDA_MEMCPY3D& c, const HostSide& side, GraphHosts::Use use) {
    return this_session().graph_hosts.name_memory({reinterpret_cast<std::byte*>(side.base), extent(c, side), use});
}

template <class Pointer>
void restore(Pointer& address) {
    const auto name = reinterpret_cast<std::uint64_t>(address);
    if (is_host_memory_name(name)) {
        if (const auto memory = this_session().graph_hosts.memory(host_memory_number(name))) {
            address = memory->place;
        }
    }
}

}  // namespace

HostSide source_of(const CUDA_MEMCPY3D& c) {
    return {const_cast<char*>(static_cast<const char*>(c.srcHost)),
            c.srcXInBytes,
            c.srcY,
            c.srcZ,
            c.srcPitch != 0 ? c.srcPitch : c.srcXInBytes + c.WidthInBytes,
            c.srcHeight != 0 ? c.srcHeight : c.srcY + c.Height};
}

HostSide destination_of(const CUDA_MEMCPY3D& c) {
    return {static_cast<char*>(c.dstHost),
            c.dstXInBytes,
            c.dstY,
            c.dstZ,
            c.dstPitch != 0 ? c.dstPitch : c.dstXInBytes + c.WidthInBytes,
            c.dstHeight != 0 ? c.dstHeight : c.dstY + c.Height};
}

bool is_empty(const CUDA_MEMCPY3D& c) {
    return c.WidthInBytes == 0 || c.Height == 0 || c.Depth == 0;
}

bool is_too_large(const CUDA_MEMCPY3D& c) {
    constexpr std::size_t kLimit = std::size_t{1} << 46;
    return c.WidthInBytes > kLimit || c.Height > kLimit / c.WidthInBytes ||
           c.Depth > kLimit / (c.WidthInBytes * c.Height);
}

bool on_device(const Session& s, std::uint64_t address) {
    if (s.window.contains(address)) {
        return true;
    }
    const auto range = s.memory.find(address);
    // Host memory that the GPU has at the same address counts as device memory.
    return range && (range->on_device() || s.host_mirrors.device_address(range->base) == range->base);
}

bool is_idle(const Session& s, CUdeviceptr address) {
    const auto range = s.window.contains(address) ? std::nullopt : s.memory.find(address);
    return range && range->idle;
}

bool is_gpus_host_memory(const Session& s, CUdeviceptr address) {
    if (s.window.contains(address)) {
        return false;
    }
    if (s.host_mirrors.is_host(address)) {
        return true;
    }
    const auto range = s.memory.may_be_host(address) ? s.memory.find(address) : std::nullopt;
    return range && !range->on_device();
}

bool is_seen_at_once(const Session& s, CUdeviceptr address) {
    if (is_gpus_host_memory(s, address)) {
        return true;
    }
    const auto range = s.memory.any_sync_memops() ? s.memory.find(address) : std::nullopt;
    return range && range->sync_memops;
}

namespace {

// Mappings may follow each other without a gap.
bool continues(const Session& s, const MemoryRange& mapping, std::uint64_t address, std::uint64_t bytes) {
    MemoryRange last = mapping;
    while (bytes > last.base + last.bytes - address) {
        const auto next = s.memory.find(last.base + last.bytes);
        if (!next || next->kind != MemoryKind::mapped) {
            return false;
        }
        last = *next;
    }
    return true;
}

bool holds(const Session& s, const MemoryRange& range, std::uint64_t address, std::uint64_t bytes) {
    if (range.idle) {
        return true;  // the driver decides
    }
    switch (range.kind) {
        case MemoryKind::global: return true;  // the driver knows what lies behind it
        case MemoryKind::mapped: return continues(s, range, address, bytes);
        default: return bytes <= range.base + range.bytes - address;
    }
}

}  // namespace

bool may_hold(const Session& s, std::uint64_t address, std::uint64_t bytes) {
    const auto range = s.memory.find(address);
    return range ? holds(s, *range, address, bytes) : !s.window.contains(address);
}

bool surely_holds(const Session& s, std::uint64_t address, std::uint64_t bytes) {
    const auto range = s.memory.find(address);
    return range && !range->idle && holds(s, *range, address, bytes);
}

namespace {

bool may_hold_side(const Session& s, const CUDA_MEMCPY3D& c, CUmemorytype type, std::uint64_t address,
                   const HostSide& side) {
    if (type == CU_MEMORYTYPE_ARRAY) {
        return true;
    }
    using Wide = unsigned __int128;
    constexpr Wide kLimit = Wide{1} << 62;
    const auto place = [&](std::size_t row, std::size_t slice) {
        return side.x + (side.y + row + Wide{side.height} * (side.z + slice)) * side.pitch;
    };
    const Wide first = place(0, 0), end = place(c.Height - 1, c.Depth - 1) + c.WidthInBytes;
    return end < kLimit &&
           may_hold(s, address + static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(end - first));
}

}  // namespace

bool may_hold(const Session& s, const CUDA_MEMCPY3D& c) {
    const bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
    return may_hold_side(s, c, c.srcMemoryType, from_host ? reinterpret_cast<std::uint64_t>(c.srcHost) : c.srcDevice,
                         source_of(c)) &&
           may_hold_side(s, c, c.dstMemoryType, to_host ? reinterpret_cast<std::uint64_t>(c.dstHost) : c.dstDevice,
                         destination_of(c));
}

namespace {

// With the driver, pinned memory has one address for both sides. So a program may declare such an end to be the
// device's.
template <class Host>
void resolve_end(const Session& s, CUmemorytype& type, CUdeviceptr address, Host*& host) {
    const bool may_be_pinned = type == CU_MEMORYTYPE_DEVICE && s.memory.may_be_host(address) && s.memory.find(address);
    if (type == CU_MEMORYTYPE_UNIFIED || may_be_pinned) {
        type = on_device(s, address) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        host = reinterpret_cast<Host*>(address);
    }
}

}  // namespace

void resolve_unified(const Session& s, CUDA_MEMCPY3D& c) {
    resolve_end(s, c.srcMemoryType, c.srcDevice, c.srcHost);
    resolve_end(s, c.dstMemoryType, c.dstDevice, c.dstHost);
}

CUresult name_host_memory(CUDA_MEMCPY3D& c) {
    if (is_empty(c)) {
        return CUDA_SUCCESS;
    }
    if (is_too_large(c)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (c.srcMemoryType == CU_MEMORYTYPE_HOST) {
        const std::uint64_t name = name_of(c, source_of(c), GraphHosts::Use::read);
        if (name == 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        c.srcHost = reinterpret_cast<const void*>(host_memory_name(name));
    }
    if (c.dstMemoryType == CU_MEMORYTYPE_HOST) {
        const std::uint64_t name = name_of(c, destination_of(c), GraphHosts::Use::write);
        if (name == 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        c.dstHost = reinterpret_cast<void*>(host_memory_name(name));
    }
    return CUDA_SUCCESS;
}

void restore_host_memory(CUDA_MEMCPY3D& c) {
    if (c.srcMemoryType == CU_MEMORYTYPE_HOST) {
        restore(c.srcHost);
    }
    if (c.dstMemoryType == CU_MEMORYTYPE_HOST) {
        restore(c.dstHost);
    }
}

}  // namespace gpupool::client
