// Tracing: a timeline of calls, wire, worker and GPU (timeline.h, server_trace.h), a line per call, or a summary of
// calls, bytes, waits and round trips. While tracing is off, each trace point costs one load and a branch.
//
// At an orderly exit of the process the summary is written and the timeline completed. After a crash the timeline lacks
// at most the last kFlushEvery. A forked child has neither until it opens a session of its own.
//
// Ownership: global state, never destroyed.
// Threads: any.
// Errors: start() reports files that cannot be written; later errors go to the log.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "client/config.h"
#include "client/core/tracing/server_trace.h"
#include "common/result.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {
class Session;
}

namespace gpupool::client::trace {

inline constexpr std::chrono::milliseconds kFlushEvery{50};

inline std::atomic<bool> enabled{false};
[[nodiscard]] inline bool on() noexcept {
    return enabled.load(std::memory_order_acquire);
}

std::uint64_t now_ns() noexcept;

// Starts what the configuration asks for, on a session that was just opened. If the timeline or the summary cannot be
// written, that is the error, and the other one works all the same.
Status start(const Config& config, Session& session);
// Starts the server's part, once the session can be used.
void follow_server(const ServerTrace::Calls& calls) noexcept;
void after_fork_in_child() noexcept;

// The worker's trace notices. False if they are invalid or not expected.
bool take_records(std::span<std::byte> body);
bool take_name(std::span<std::byte> body);

// What a call waits for.
// - reply: a reply; counts as a round trip.
// - data: its data to be sent.
// - pull: its data to be pulled by the worker and sent; counts as a round trip.
// - room: room for a command, for data, for a block of memory, or for more work in a stream.
enum class For { room, reply, data, pull };

namespace detail {
void add_bytes_sent(std::uint64_t bytes) noexcept;
void add_bytes_received(std::uint64_t bytes) noexcept;
void add_wait(std::uint64_t begin_ns, For what) noexcept;
}  // namespace detail

// Adds bytes on the wire to the thread's current call.
inline void add_bytes_sent(std::uint64_t bytes) noexcept {
    if (on()) [[unlikely]] {
        detail::add_bytes_sent(bytes);
    }
}
inline void add_bytes_received(std::uint64_t bytes) noexcept {
    if (on()) [[unlikely]] {
        detail::add_bytes_received(bytes);
    }
}
// The time now; 0 while tracing is off.
inline std::uint64_t moment_ns() noexcept {
    return on() ? now_ns() : 0;
}
// Records that the thread's current call has sent this command; it began to send at `begin_ns`.
void note_command(std::uint64_t number, std::uint64_t begin_ns) noexcept;

// Adds its lifetime to the wait time of the thread's current call.
class Wait {
  public:
    explicit Wait(For what = For::room) noexcept : what_(what) {
        if (on()) [[unlikely]] {
            begin_ns_ = now_ns();
        }
    }
    ~Wait() {
        if (begin_ns_ != 0) [[unlikely]] {
            detail::add_wait(begin_ns_, what_);
        }
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

  private:
    const For what_;
    std::uint64_t begin_ns_ = 0;
};

// Traces one call of an entry point.
class Call {
  public:
    explicit Call(std::uint16_t opcode) noexcept : opcode_(opcode) {
        if (on()) [[unlikely]] {
            begin();
        }
    }
    void end(CUresult result) noexcept {
        if (active_) [[unlikely]] {
            finish(result);
        }
    }

  private:
    void begin() noexcept;
    void finish(CUresult result) noexcept;
    const std::uint16_t opcode_;
    bool active_ = false;
    std::uint64_t begin_ns_ = 0;
};

}  // namespace gpupool::client::trace
