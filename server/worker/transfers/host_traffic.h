// What a session copies between its client and its devices: counts it, and keeps it within the session's bandwidth.
//
// Each direction has an account of its own. A copy may begin a piece whenever the account owes nothing; the piece is
// then charged in full, so a direction is late by one piece at most, and its average is exact. A direction that was
// unused may catch up kBurst of its bandwidth. Without a limit no clock is read.
//
// Kernels and graphs that use the client's shared memory themselves are not seen here.
//
// Threads: the dispatcher's alone.
// Units: bytes, bytes per second.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "common/session_counters.h"

namespace gpupool::worker {

class HostTraffic {
  public:
    enum class Way : std::uint8_t { in, out };  // to devices, and back
    static constexpr std::uint64_t kUnlimited = UINT64_MAX;
    static constexpr std::chrono::milliseconds kBurst{20};

    HostTraffic(SessionCounters& counters, TimeSource& clock) : counters_(counters), clock_(clock) {}

    void limit(std::uint64_t bytes_per_second) {
        bytes_per_second_ = bytes_per_second;
        even_at_ = {};
    }
    [[nodiscard]] bool limited() const { return bytes_per_second_ != kUnlimited; }

    // May another piece begin?
    [[nodiscard]] bool may_go(Way way) const { return !limited() || clock_.now() >= even_at(way); }
    // A piece begins.
    void count(Way way, std::uint64_t bytes) {
        auto& counter = way == Way::in ? counters_.bytes_in : counters_.bytes_out;
        counter.store(counter.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
        if (limited()) {
            charge(way, bytes);
        }
    }

  private:
    [[nodiscard]] const TimeSource::TimePoint& even_at(Way way) const { return even_at_[static_cast<unsigned>(way)]; }
    void charge(Way way, std::uint64_t bytes);

    SessionCounters& counters_;
    TimeSource& clock_;
    std::uint64_t bytes_per_second_ = kUnlimited;
    std::array<TimeSource::TimePoint, 2> even_at_{};  // when the bandwidth will have made up for what was charged
};

}  // namespace gpupool::worker
