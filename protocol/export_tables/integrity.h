// What INTEGRITY_CHECK answers: a keyed hash over what both sides know, by which libcudart sees that it talks to a
// driver of which it read the same facts. It holds the process, the thread and table addresses, so the client computes
// it itself.
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

// The answer to (version, unix_seconds). Versions that end in 0 and 1 are asked first and have fixed answers.
Md2Digest integrity_answer(const IntegrityFacts& facts, std::span<const DeviceIdentity> devices, std::uint32_t version,
                           std::uint64_t unix_seconds);

}  // namespace gpupool::client::export_tables
