// The answer of INTEGRITY_CHECK: a keyed hash over facts that libcudart has read from the driver as well, by which
// libcudart verifies that it talks to that driver. The facts include process, thread and table addresses, so the client
// computes the hash itself.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/md2.h"

namespace gpupool::client::export_tables {

struct IntegrityFacts {
    std::uint32_t driver_version = 0;
    std::uint32_t process = 0;
    std::uint32_t thread = 0;  // the low half of pthread_self()
    std::uint64_t cudart_table = 0;
    std::uint64_t integrity_table = 0;
    std::uint64_t integrity_function = 0;
};

// The digest with which the driver answers libcudart's check of (version, unix_seconds). libcudart asks for versions
// ending in 0 and 1 first; their answers are fixed.
Md2Digest integrity_answer(const IntegrityFacts& facts, std::span<const DeviceIdentity> devices, std::uint32_t version,
                           std::uint64_t unix_seconds);

}  // namespace gpupool::client::export_tables
