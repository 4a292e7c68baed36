// Decides which workers the stock should contain: a fixed number, for the environments of the most recent sessions.
//
// A worker is prepared with the CUDA_* variables that configure its client's driver. The driver reads them once, so the
// worker can serve only sessions with the same variables. The stock therefore follows the sessions. It starts out
// prepared for sessions without such variables.
//
// Ownership: values. Threads: the loop's. Errors: none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/daemon/admission.h"

namespace gpupool::daemon {

// Variables by name. Equal environments configure the driver equally.
using DriverEnvironment = std::map<std::string, std::string>;

// The variables that a client's session sets, except those that only state the driver's default.
DriverEnvironment environment_of(const Admission& admission, std::int32_t driver_version);

class StockPlan {
  public:
    using Clock = std::chrono::steady_clock;

    explicit StockPlan(std::size_t size, TimeSource& clock = TimeSource::system()) : clock_(clock), size_(size) {}

    [[nodiscard]] std::size_t size() const { return size_; }

    // Notes that a session begins. Delays new workers of the stock for a moment, so that they do not slow it down.
    void note_session(const DriverEnvironment& environment);
    // Notes that a worker of the stock ended by itself. If it was not ready yet, the next attempt backs off
    // exponentially and does not use its environment, which may hide every device from the driver.
    void note_failure(const DriverEnvironment& environment, bool was_ready);
    void note_ready() { failures_ = 0; }

    // No worker should be started before this time.
    [[nodiscard]] Clock::time_point start_after() const { return start_after_; }

    struct Changes {
        std::vector<DriverEnvironment> start;
        std::vector<std::size_t> end;  // indices into `existing`
    };
    // What to start and end so that the stock is complete. `existing`: the environments of its workers, ready or not.
    [[nodiscard]] Changes changes(const std::vector<const DriverEnvironment*>& existing) const;

  private:
    TimeSource& clock_;
    const std::size_t size_;
    std::deque<DriverEnvironment> recent_{{}};  // most recent first, without duplicates
    Clock::time_point start_after_{};
    unsigned failures_ = 0;  // consecutive failures of workers that were not ready yet
};

}  // namespace gpupool::daemon
