// The limits of a session that its worker enforces, as the daemon sends them: with the Assignment, and again when they
// change.
//
// Ownership: values. Threads: any.
#pragma once

#include <cstdint>

#include "protocol/schema/supervision.capnp.h"

namespace gpupool::supervision {

struct SessionLimits {
    static constexpr std::uint64_t kNone = UINT64_MAX;

    std::uint64_t copy_bytes_per_second = kNone;  // between client and devices, in each direction
    std::uint64_t pinned_bytes = kNone;           // host memory that is pinned for the client
    std::uint64_t handles = kNone;                // driver objects

    bool operator==(const SessionLimits&) const = default;
};

inline void write(const SessionLimits& limits, schema::SessionLimits::Builder to) {
    to.setCopyBytesPerSecond(limits.copy_bytes_per_second);
    to.setPinnedBytes(limits.pinned_bytes);
    to.setHandles(limits.handles);
}

inline SessionLimits read(schema::SessionLimits::Reader from) {
    return {from.getCopyBytesPerSecond(), from.getPinnedBytes(), from.getHandles()};
}

}  // namespace gpupool::supervision
