// Opens a session's further connections for bulk data, when there is so much of it that they pay: not at the start, and
// never while anybody waits. Data that is under way meanwhile uses what there is.
//
// Ownership: lives as long as the session, which is as long as the process. `lanes` outlives it. Threads: want() any,
//   and it never waits; connections are made by threads of their own, some at once: each takes some round trips, and
//   meanwhile one of the server's places for connections that it does not know yet. Errors: a lane that cannot be had
//   is said in the log; the session goes on with those that there are.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>

#include "client/config.h"
#include "client/core/session/handshake.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/lanes.h"

namespace gpupool::client {

class LaneOpener {
  public:
    // A transfer of so many bytes is worth it.
    static constexpr std::size_t kWorthwhileBytes = 1u << 20;
    static constexpr std::size_t kAtOnce = 2;

    LaneOpener(Config config, LaneTicket ticket, std::size_t count, wire::Lanes& lanes);

    // A transfer of `bytes` begins.
    void want(std::size_t bytes) noexcept {
        if (bytes >= kWorthwhileBytes && !asked_.load(std::memory_order_relaxed)) {
            begin();
        }
    }

    // In a forked child: the connections are the parent's.
    void close_descriptors() noexcept;

  private:
    void begin() noexcept;
    void open_one(std::size_t index) noexcept;
    void warn(std::string_view why) noexcept;
    Status open(std::size_t index);

    const Config config_;
    const LaneTicket ticket_;
    const std::size_t count_;
    wire::Lanes& lanes_;
    std::atomic<bool> asked_{false}, warned_{false};
    std::atomic<std::size_t> opened_{0};
    std::array<std::array<std::atomic<int>, transport::kMaxDescriptors>, wire::Lanes::kMaxLanes> descriptors_;
};

}  // namespace gpupool::client
