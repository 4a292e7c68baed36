// Opens the lanes of a session: further connections for bulk data. It does so when the first large transfer begins, not
// at the start, and without delaying any call. Transfers meanwhile use the connections that exist.
//
// Ownership: lives as long as the session, that is, as long as the process. `lanes` outlives it.
// Threads: want() any; it never blocks. kAtOnce threads of its own connect, because each connection takes some round
// trips. While connecting, a lane occupies one of the daemon's places for pending connections.
// Errors: a lane that cannot be opened is logged; the session uses the others.
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
    // A transfer of this size makes lanes worthwhile.
    static constexpr std::size_t kWorthwhileBytes = 1u << 20;
    static constexpr std::size_t kAtOnce = 2;

    LaneOpener(Config config, LaneTicket ticket, std::size_t count, wire::Lanes& lanes);

    // A transfer of `bytes` begins.
    void want(std::size_t bytes) noexcept {
        if (bytes >= kWorthwhileBytes && !asked_.load(std::memory_order_relaxed)) {
            begin();
        }
    }

    // For a forked child: the connections are the parent's.
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
