// mbarriers: barriers in shared memory that count arrivals and the bytes of asynchronous copies. Included by
// ops_async.cpp and ops_atomic.cpp only.
//
// PTX does not specify a barrier's 64 bits. Here bits 0-19 are pending arrivals, 20-39 arrivals per phase, 40-62
// expected bytes (signed), 63 the parity of the phase. A state is the value before an arrival.
//
// Threads: all warps of a block run on one thread. Ownership: none. Errors: faults of the warp.
#pragma once

#include "server/softgpu/exec/async_form.h"
#include "server/softgpu/exec/resolve.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

constexpr std::uint32_t kMaxArrivals = (1U << 20) - 1;
constexpr std::int64_t kMaxBytes = (1 << 20) - 1;

struct Mbarrier {
    std::uint32_t pending, expected;
    std::int64_t bytes;
    bool parity;

    explicit Mbarrier(std::uint64_t bits)
        : pending(static_cast<std::uint32_t>(bits & kMaxArrivals)),
          expected(static_cast<std::uint32_t>(bits >> 20 & kMaxArrivals)),
          bytes(static_cast<std::int64_t>(bits << 1) >> 41),
          parity(bits >> 63 != 0) {}

    std::uint64_t bits() const {
        return std::uint64_t{pending} | std::uint64_t{expected} << 20 |
               (static_cast<std::uint64_t>(bytes) & 0x7FFFFF) << 40 | std::uint64_t{parity} << 63;
    }
    void complete_if_done() {
        if (pending != 0 || bytes != 0) {
            return;
        }
        pending = expected;
        parity = !parity;
    }
};

// Counts bytes of a copy at the barrier, whose host address is given.
inline void complete_bytes(std::uint64_t barrier, std::uint32_t bytes) {
    auto* at = reinterpret_cast<std::uint64_t*>(barrier);
    Mbarrier state(__atomic_load_n(at, __ATOMIC_ACQUIRE));
    state.bytes -= bytes;
    state.complete_if_done();
    __atomic_store_n(at, state.bits(), __ATOMIC_RELEASE);
}

// Bulk copies: a and b are addresses, c is the size, e an mbarrier that counts the bytes, extra the spaces
// (async_form.h). Calls `move(to, from, bytes)` with host addresses.
template <class Move>
void each_bulk(Warp& w, const Inst& i, Move move) {
    for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
        const std::uint32_t bytes = w.reg<std::uint32_t>(i.c)[lane];
        const auto to_space = (i.extra & async_form::kToShared) != 0 ? MemorySpace::shared : MemorySpace::global;
        const auto from_space = (i.extra & async_form::kFromShared) != 0 ? MemorySpace::shared : MemorySpace::global;
        std::uint64_t to = 0, from = 0, barrier = 0;
        if (!resolve_span(w, i, to_space, w.reg<std::uint64_t>(i.a)[lane], bytes, to, Access::write) ||
            !resolve_span(w, i, from_space, w.reg<std::uint64_t>(i.b)[lane], bytes, from, Access::read)) {
            return;
        }
        if (i.e != kNoSlot &&
            !resolve_span(w, i, MemorySpace::shared, w.reg<std::uint64_t>(i.e)[lane], 8, barrier, Access::write)) {
            return;
        }
        if (((to | from | bytes) & 15) != 0 || (barrier & 7) != 0) {
            return w.raise(FaultKind::misaligned_address, i, to, "a bulk copy must be aligned to 16 bytes");
        }
        move(to, from, bytes);
        if (i.e != kNoSlot) {
            complete_bytes(barrier, bytes);
        }
    }
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
