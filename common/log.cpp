#include "common/log.h"

// Uses the distribution's fmt. No thread-local caches: they would be wrong in a forked child.
#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#define SPDLOG_NO_TLS
#include <fcntl.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "common/files.h"
#include "common/mutex.h"

namespace gpupool::log {
namespace {

struct State {
    Mutex mutex;
    std::shared_ptr<spdlog::sinks::sink> sink GP_GUARDED_BY(mutex);
    Level level GP_GUARDED_BY(mutex) = Level::off;
};

void lock_for_fork();
void unlock_after_fork();

State& state() {
    static State* const instance = [] {
        pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
        return new State;
    }();
    return *instance;
}

// fork() runs these two in pairs, which the analysis does not see.
void lock_for_fork() GP_NO_THREAD_SAFETY_ANALYSIS {
    state().mutex.lock();
}
void unlock_after_fork() GP_NO_THREAD_SAFETY_ANALYSIS {
    state().mutex.unlock();
}

constexpr std::array<std::string_view, 6> kLevelNames = {"trace", "debug", "info", "warn", "error", "off"};

void install(std::shared_ptr<spdlog::sinks::sink> sink, Level level) {
    // Time, process, thread, message. write() puts the level into the message, under the name that settings use.
    sink->set_formatter(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%d %H:%M:%S.%e %P:%t %v"));
    State& current = state();
    const Lock lock(current.mutex);
    current.sink = std::move(sink);
    current.level = level;
    detail::threshold.store(level, std::memory_order_relaxed);
}

}  // namespace

std::string_view to_string(Level level) noexcept {
    return kLevelNames[static_cast<std::size_t>(level)];
}

Result<Level> parse_level(std::string_view text) {
    for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
        if (kLevelNames[i] == text) {
            return static_cast<Level>(i);
        }
    }
    return Error{ErrorCode::invalid_input,
                 fmt::format("'{}' is not a log level: trace, debug, info, warn, error, off", text)};
}

Status to_file(const std::string& path, Level level) {
    // Opened before spdlog opens it: this gives the meaning of errno, and creates the file unreadable for other users.
    const auto probe = open_to_append(path, 0600);
    if (!probe) {
        return probe.error().within("the log file");
    }
    try {
        install(std::make_shared<spdlog::sinks::basic_file_sink_st>(path), level);
    } catch (const std::exception& problem) {
        return Error{ErrorCode::system, fmt::format("cannot write the log file {}: {}", path, problem.what())};
    }
    return {};
}

void to_stderr(Level level) {
    install(std::make_shared<spdlog::sinks::stderr_sink_st>(), level);
}

Status to_present_stderr(Level level) {
    const int own = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    std::FILE* const file = own < 0 ? nullptr : ::fdopen(own, "a");
    if (file == nullptr) {
        return system_error("cannot keep standard error for the log", errno);
    }
    // Never closed, like the sink.
    install(std::make_shared<spdlog::sinks::stdout_sink_base<spdlog::details::console_nullmutex>>(file), level);
    return {};
}

void detail::write(Level level, fmt::string_view format, fmt::format_args arguments) noexcept {
    try {
        fmt::memory_buffer text;
        fmt::format_to(fmt::appender(text), "{:<5} ", to_string(level));
        fmt::vformat_to(fmt::appender(text), format, arguments);
        const spdlog::details::log_msg message({}, spdlog::level::info, {text.data(), text.size()});
        State& current = state();
        const Lock lock(current.mutex);
        if (!current.sink || level < current.level) {
            return;
        }
        current.sink->log(message);
        current.sink->flush();
    } catch (...) {
        // A full disk must not disturb the application.
    }
}

}  // namespace gpupool::log
