// Selects the entries that a device would use, and builds containers of only these.
//
// The driver prefers machine code for exactly this device, then machine code of the same major and a lower minor
// version, then PTX of the highest version that the device supports. Which of two equally good entries the driver uses
// is not documented; both are kept, so that a container made of the selection behaves like the whole one.
//
// Ownership: entries point into the caller's memory; a repacked container is the caller's. Threads: any. Errors:
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
    cubin_only,  // for a caller that cannot run PTX, or handles it separately
};

// Whether the device can run this entry at all. True for a bare image (arch 0), whose architecture is unknown.
bool runs_on(const Entry& entry, ComputeCapability device) noexcept;

// The best entries, arch-specific ones first; empty if the device can run none.
std::vector<Entry> select(std::span<const Entry> entries, ComputeCapability device,
                          Preference preference = Preference::as_driver);

// Builds a container of these entries, which may be from several containers. Refuses entries of bare images, which have
// no header to copy.
Result<std::vector<std::byte>> repack(std::span<const Entry> entries);

}  // namespace gpupool::fatbin
