// Resolves the address operand of a memory instruction to one checked host pointer per lane.
//
// Included by ops_memory.cpp and ops_atomic.cpp, in the namespace of their instruction set. Threads: one per warp.
// Errors: raises illegal_address or misaligned_address on the warp.
#pragma once

#include <limits>

#include "server/softgpu/exec/lanes.h"
#include "server/softgpu/exec/memory_form.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

using LanePointers = std::uint64_t[kLaneCount];

inline std::uint64_t lane_address(const Warp& w, const Inst& i, std::uint32_t lane) {
    if (i.a == kNoSlot) {
        return i.imm;
    }
    const std::uint64_t base =
        (i.mode & kAddressIs32Bits) != 0 ? w.reg<std::uint32_t>(i.a)[lane] : w.reg<std::uint64_t>(i.a)[lane];
    return base + i.imm;
}

enum class Access : bool { read, write };

inline bool find_global(Warp& w, const Inst& i, std::uint64_t address, std::uint32_t size_bytes, Access access) {
    const auto& space = AddressSpace::instance();
    const std::uint32_t generation = space.generation();
    RangeCache& range = w.range;
    if (generation == range.generation && address >= range.begin && address + size_bytes <= range.end) {
        return true;
    }
    AddressRange found;
    // An address within the launch's parameter buffer, which is not an allocation.
    const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(w.launch->params);
    if (offset < w.launch->entry->param_bytes && w.launch->entry->param_bytes - offset >= size_bytes) {
        return true;
    }
    if (!space.find(address, found) || address + size_bytes > found.end) {
        w.raise(FaultKind::illegal_address, i, address, "no allocation is there");
        return false;
    }
    const std::uint64_t asking = found.access.by_peers ? w.launch->reachable : w.launch->device;
    const bool reads = (found.access.readers & asking) != 0, writes = (found.access.writers & asking) != 0;
    if (access == Access::write ? !writes : !reads) {
        w.raise(FaultKind::illegal_address, i, address,
                reads ? "the mapping is for reading only" : "this device has no access to the memory");
        return false;
    }
    if (reads && writes) {
        range = {found.begin, found.end, generation};
    }
    return true;
}

inline bool bounded(Warp& w, const Inst& i, std::uint64_t offset, std::uint32_t size_bytes, std::uint64_t limit,
                    const char* what) {
    if (offset <= limit && limit - offset >= size_bytes) {
        return true;
    }
    w.raise(FaultKind::illegal_address, i, offset, what);
    return false;
}

inline bool resolve_shared(Warp& w, const Inst& i, std::uint64_t offset, std::uint32_t size_bytes,
                           std::uint64_t& pointer) {
    const std::uint8_t* shared = w.shared;
    if (offset >> kPeerSharedShift != 0) {
        const std::uint64_t rank = (offset >> kPeerSharedShift) - 1;
        if (rank < w.cluster_blocks) {
            shared = w.peer_shared[rank];
            offset &= (1U << kPeerSharedShift) - 1;
        }
    }
    if (!bounded(w, i, offset, size_bytes, w.shared_bytes, "beyond the block's shared memory")) {
        return false;
    }
    pointer = reinterpret_cast<std::uint64_t>(shared) + offset;
    return true;
}

inline bool resolve_local(Warp& w, const Inst& i, std::uint32_t lane, std::uint64_t offset, std::uint32_t size_bytes,
                          std::uint64_t& pointer) {
    if (!bounded(w, i, offset, size_bytes, w.local_stride_bytes, "beyond the thread's local memory")) {
        return false;
    }
    pointer = reinterpret_cast<std::uint64_t>(w.local) + std::uint64_t{lane} * w.local_stride_bytes + offset;
    return true;
}

// Generic and global addresses. Checks all lanes against the last range first, then lane by lane.
inline bool resolve_flat(Warp& w, const Inst& i, std::uint32_t size_bytes, LanePointers& pointers, bool generic,
                         Access access) {
    const std::uint64_t* a = i.a == kNoSlot ? nullptr : w.reg<std::uint64_t>(i.a);
    std::uint64_t lowest = ~std::uint64_t{0}, highest = 0;
    if (w.exec == kAllLanes && a != nullptr) {
        // Signed, since vector comparisons are. An address of 2^63 or more becomes the lowest, which is in no range.
        std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = std::numeric_limits<std::int64_t>::min();
        GPUPOOL_INDEPENDENT
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            const std::uint64_t address = a[lane] + i.imm;
            pointers[lane] = address;
            const auto place = static_cast<std::int64_t>(address);
            first = place < first ? place : first;
            last = place > last ? place : last;
        }
        lowest = first < 0 ? 0 : static_cast<std::uint64_t>(first);
        highest = static_cast<std::uint64_t>(last);
    } else {
        for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
            const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
            const std::uint64_t address = (a != nullptr ? a[lane] : 0) + i.imm;
            pointers[lane] = address;
            lowest = address < lowest ? address : lowest;
            highest = address > highest ? address : highest;
        }
    }
    const RangeCache& range = w.range;
    if (lowest >= range.begin && highest < range.end && range.end - highest >= size_bytes &&
        range.generation == AddressSpace::instance().generation()) {
        return true;
    }
    for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
        const std::uint64_t address = pointers[lane];
        if (generic) {
            const Windows& window = windows();
            if (address - window.shared_base < Windows::kSizeBytes) {
                if (!resolve_shared(w, i, address - window.shared_base, size_bytes, pointers[lane])) {
                    return false;
                }
                continue;
            }
            if (address - window.local_base < Windows::kSizeBytes) {
                if (!resolve_local(w, i, lane, address - window.local_base, size_bytes, pointers[lane])) {
                    return false;
                }
                continue;
            }
        }
        if (!find_global(w, i, address, size_bytes, access)) {
            return false;
        }
    }
    return true;
}

// Resolves all lanes in the block's own shared memory at once. Returns false if they must be checked one by one.
inline bool shared_lanes(const Warp& w, const Inst& i, std::uint32_t size_bytes, LanePointers& pointers) {
    const std::uint32_t* a = w.reg<std::uint32_t>(i.a);
    const auto distance = static_cast<std::uint32_t>(i.imm);
    std::uint32_t highest = 0;
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        const std::uint32_t offset = a[lane] + distance;
        highest = offset > highest ? offset : highest;
    }
    if (highest > w.shared_bytes || w.shared_bytes - highest < size_bytes) {
        return false;
    }
    const auto base = reinterpret_cast<std::uint64_t>(w.shared);
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        pointers[lane] = base + static_cast<std::uint32_t>(a[lane] + distance);
    }
    return true;
}

// Resolves one address and `size_bytes`, which must lie in one range. Shared memory may be addressed generically.
inline bool resolve_span(Warp& w, const Inst& i, MemorySpace space, std::uint64_t address, std::uint32_t size_bytes,
                         std::uint64_t& pointer, Access access) {
    if (address - windows().shared_base < Windows::kSizeBytes) {
        return resolve_shared(w, i, address - windows().shared_base, size_bytes, pointer);
    }
    if (space == MemorySpace::shared) {
        return resolve_shared(w, i, address & 0xFFFFFFFF, size_bytes, pointer);
    }
    pointer = address;
    return size_bytes == 0 || find_global(w, i, address, size_bytes, access);
}

// Finds the host pointer of every active lane's address. False if a lane may not access `size_bytes` there.
inline bool resolve(Warp& w, const Inst& i, std::uint32_t size_bytes, LanePointers& pointers, Access access) {
    const auto space = static_cast<MemorySpace>(i.mode & kMemorySpaceMask);
    if (space == MemorySpace::generic || space == MemorySpace::global) {
        if (!resolve_flat(w, i, size_bytes, pointers, space == MemorySpace::generic, access)) {
            return false;
        }
    } else if (space == MemorySpace::shared && w.exec == kAllLanes && (i.mode & kAddressIs32Bits) != 0 &&
               i.a != kNoSlot && shared_lanes(w, i, size_bytes, pointers)) {
        // Already resolved.
    } else {
        for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
            const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
            const std::uint64_t offset = lane_address(w, i, lane);
            if (space == MemorySpace::shared) {
                if (!resolve_shared(w, i, offset & 0xFFFFFFFF, size_bytes, pointers[lane])) {
                    return false;
                }
            } else if (space == MemorySpace::local) {
                if (!resolve_local(w, i, lane, offset & 0xFFFFFFFF, size_bytes, pointers[lane])) {
                    return false;
                }
            } else if (space == MemorySpace::entry_param) {
                if (!bounded(w, i, offset, size_bytes, w.launch->entry->param_bytes,
                             "beyond the kernel's parameters")) {
                    return false;
                }
                pointers[lane] = reinterpret_cast<std::uint64_t>(w.launch->params) + offset;
            } else {
                const CompiledFunction& function = *w.current.frame->function;
                if (!bounded(w, i, offset, size_bytes, function.area_stride_bytes, "beyond a parameter")) {
                    return false;
                }
                pointers[lane] = reinterpret_cast<std::uint64_t>(w.regs) + function.register_bytes +
                                 std::uint64_t{lane} * function.area_stride_bytes + offset;
            }
        }
    }
    std::uint64_t low_bits = 0;
    if (w.exec == kAllLanes) {
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            low_bits |= pointers[lane];
        }
    } else {
        for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
            low_bits |= pointers[std::countr_zero(rest)];
        }
    }
    if ((low_bits & (size_bytes - 1)) != 0) {
        w.raise(FaultKind::misaligned_address, i, pointers[std::countr_zero(w.exec)],
                "the address is not a multiple of the access");
        return false;
    }
    return true;
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
