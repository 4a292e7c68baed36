// Amounts as people write them in settings: sizes, durations, switches.
//
// Ownership: values. Threads: any. Errors: Result, whose message shows what was given and what would be right.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// Of device memory, that a session may be given: drivers give it in units of this.
inline constexpr std::uint64_t kLeastSessionMemoryBytes = 2u << 20;

// "8GiB", "512 MiB", "1.5G", "4096": K, M, G, T with or without "iB" are powers of 1024, "kB", "MB", "GB", "TB" of
// 1000.
Result<std::uint64_t> parse_bytes(std::string_view text);

// "5", "5s", "250ms", "2m", "1h", "0.5": seconds where no unit is given.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

// "1", "true", "yes", "on" and their opposites, in any case.
Result<bool> parse_switch(std::string_view text);

// "8 GiB", "1.5 MiB", "17 B".
std::string format_bytes(std::uint64_t bytes);

}  // namespace gpupool
