// Where time goes: a timeline of calls, wire, worker and GPU (timeline.h, server_trace.h), a line per call, and a
// summary of calls, bytes, waits and round trips. Off, each place costs one load and a branch.
//
// Threads: any. The summary is written, and the timeline completed, when the process ends orderly; what a crash leaves
// of the timeline lacks the last kFlushEvery. A forked child has neither until it makes a session of its own.
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

// What the configuration asks for; `session` has just been opened. Of timeline and summary one that cannot be written
// is the error, and costs nothing but itself.
Status start(const Config& config, Session& session);
// Once the session can be used: the server's part begins.
void follow_server(const ServerTrace::Calls& calls) noexcept;
void after_fork_in_child() noexcept;

// What the worker says unasked; false when it was not to.
bool take_records(std::span<std::byte> body);
bool take_name(std::span<std::byte> body);

// What a call waits for: a reply, which is a round trip; its data to be asked for and sent; or room, for a command, for
// data, for a block of memory, or for more work in a stream.
// pull: data that the worker has to ask for, so that it is a round trip as well.
enum class For { room, reply, data, pull };

namespace detail {
void add_bytes_sent(std::uint64_t bytes) noexcept;
void add_bytes_received(std::uint64_t bytes) noexcept;
void add_wait(std::uint64_t begin_ns, For what) noexcept;
}  // namespace detail

// What the call that the thread is in did on the wire.
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
// Now; 0 while nobody asks.
inline std::uint64_t moment_ns() noexcept {
    return on() ? now_ns() : 0;
}
// The call that the thread is in has sent this command, beginning at `begin_ns`.
void note_command(std::uint64_t number, std::uint64_t begin_ns) noexcept;

// Adds what it takes until its end to the waits of the call that the thread is in.
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

// Around one entry point.
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
