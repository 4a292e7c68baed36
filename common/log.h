// The process-wide log: `log::warn("worker {} ended: {}", pid, reason)`.
//
// There is no sink until one is installed, so that the client library never prints inside an application's process. A
// message below the level costs one relaxed load and a branch.
//
// Ownership: one sink per process, never destroyed (threads may log while the process exits). Threads: any; messages
// are written whole, one at a time, and flushed. A fork waits for the message being written, so that the child can go
// on logging. Errors: `to_file` reports why a file cannot be written. Logging itself never fails or throws: a message
// that cannot be written is dropped.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool::log {

enum class Level : int { trace, debug, info, warn, error, off };

std::string_view to_string(Level level) noexcept;
Result<Level> parse_level(std::string_view text);

// Each of these replaces the current sink. A file is appended to, and created with mode 0600.
Status to_file(const std::string& path, Level level);
void to_stderr(Level level);
// Logs to a duplicate of the present standard error, so that descriptor 2 may be redirected afterwards.
Status to_present_stderr(Level level);

namespace detail {
inline std::atomic<Level> threshold{Level::off};
void write(Level level, fmt::string_view format, fmt::format_args arguments) noexcept;
}  // namespace detail

inline bool enabled(Level level) noexcept {
    return level >= detail::threshold.load(std::memory_order_relaxed);
}

#define GPUPOOL_LOG_FUNCTION(name)                                               \
    template <class... T>                                                        \
    void name(fmt::format_string<T...> format, T&&... arguments) noexcept {      \
        if (!enabled(Level::name)) return;                                       \
        detail::write(Level::name, format, fmt::make_format_args(arguments...)); \
    }
GPUPOOL_LOG_FUNCTION(trace)
GPUPOOL_LOG_FUNCTION(debug)
GPUPOOL_LOG_FUNCTION(info)
GPUPOOL_LOG_FUNCTION(warn)
GPUPOOL_LOG_FUNCTION(error)
#undef GPUPOOL_LOG_FUNCTION

}  // namespace gpupool::log
