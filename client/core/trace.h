// Where time goes: a line per call, and a summary of calls, bytes, waits and round trips. Off, it costs one load and a
// branch.
//
// Threads: any. The summary is written when the process ends orderly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/result.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client::trace {

inline std::atomic<bool> enabled{false};

// Files of the configuration; empty: off. "-" is stderr.
Status start(const std::string& trace_file, const std::string& summary_file);

// What the call that the thread is in did on the wire.
void add_bytes_sent(std::uint64_t bytes) noexcept;
void add_bytes_received(std::uint64_t bytes) noexcept;
void add_round_trip(std::chrono::nanoseconds waited) noexcept;
void add_wait(std::chrono::nanoseconds waited) noexcept;  // for something else than a reply

// Adds what it takes until its end to the waits of the call that the thread is in.
class Wait {
  public:
    Wait() noexcept : counts_(enabled.load(std::memory_order_relaxed)) {
        if (counts_) {
            start_ = std::chrono::steady_clock::now();
        }
    }
    ~Wait() {
        if (counts_) {
            add_wait(std::chrono::steady_clock::now() - start_);
        }
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

  private:
    const bool counts_;
    std::chrono::steady_clock::time_point start_{};
};

// Around one entry point.
class Call {
  public:
    explicit Call(std::uint16_t opcode) noexcept : opcode_(opcode) {
        if (enabled.load(std::memory_order_relaxed)) {
            begin();
        }
    }
    void end(CUresult result) noexcept {
        if (active_) {
            finish(result);
        }
    }

  private:
    void begin() noexcept;
    void finish(CUresult result) noexcept;
    const std::uint16_t opcode_;
    bool active_ = false;
    std::chrono::steady_clock::time_point start_{};
};

}  // namespace gpupool::client::trace
