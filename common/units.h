// Parses and formats amounts as people write them in settings: sizes, durations, switches.
//
// Ownership: values. Threads: any. Errors: Result, whose message quotes the text and names what is accepted.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// The smallest memory quota of a session. Drivers allocate device memory in multiples of it.
inline constexpr std::uint64_t kLeastSessionMemoryBytes = 2u << 20;

// A quota rounded down to that multiple, so that all of it can be allocated. A smaller one stays as it is: it allows
// nothing, while 0 would allow everything.
constexpr std::uint64_t in_allocation_units(std::uint64_t quota_bytes) {
    return quota_bytes < kLeastSessionMemoryBytes ? quota_bytes
                                                  : quota_bytes / kLeastSessionMemoryBytes * kLeastSessionMemoryBytes;
}

// "8GiB", "512 MiB", "1.5G", "4096": K, M, G, T with or without "iB" are powers of 1024, "kB", "MB", "GB", "TB" of
// 1000.
Result<std::uint64_t> parse_bytes(std::string_view text);

// "5", "5s", "250ms", "2m", "1h", "0.5": seconds if no unit is given.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

// "1", "true", "yes", "on" and their opposites, in any case.
Result<bool> parse_switch(std::string_view text);

// "8 GiB", "1.5 MiB", "17 B".
std::string format_bytes(std::uint64_t bytes);

}  // namespace gpupool
