// Which entries a device would use, and containers that hold nothing else.
//
// The driver prefers machine code made for exactly this device, then machine code of the same major and a lower minor
// version, then PTX of the highest version that the device covers. Where two entries are equally good the driver's
// choice is not documented; both are kept, so that a container made of the selection behaves like the whole one.
//
// Ownership: entries point into the caller's memory, a repacked container is the caller's. Threads: any. Errors:
// Result.
#pragma once

#include "common/fatbin/image.h"

namespace gpupool::fatbin {

struct ComputeCapability {
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
};

enum class Preference {
    as_driver,
    ptx_only,    // CUDA_FORCE_PTX_JIT, and devices that run nothing but PTX
    cubin_only,  // who can run no PTX, or takes it by another way
};

// Whether the device can run this entry at all. A bare image (arch 0) is said to fit: only its contents tell.
bool runs_on(const Entry& entry, ComputeCapability device) noexcept;

// The best entries, those for one architecture alone first; empty when nothing fits.
std::vector<Entry> select(std::span<const Entry> entries, ComputeCapability device,
                          Preference preference = Preference::as_driver);

// A container of these entries (of any containers). Refuses entries of bare images, which have no header to copy.
Result<std::vector<std::byte>> repack(std::span<const Entry> entries);

}  // namespace gpupool::fatbin
