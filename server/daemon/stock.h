// Which workers the stock should hold: a number of them, for the environments that sessions asked for last.
//
// A worker is prepared with the variables by which a client tells its driver what to do, and the driver reads them
// once: it serves only sessions that want the same. The stock therefore follows the sessions. At first it is for those
// that say nothing.
//
// Ownership: values. Threads: the daemon's one. Errors: none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "server/daemon/admission.h"

namespace gpupool::daemon {

// Variables by name. Two that compare equal make the same driver.
using DriverEnvironment = std::map<std::string, std::string>;

// What a guest's session will set, less what is the driver's default anyhow.
DriverEnvironment environment_of(const Guest& guest, std::int32_t driver_version);

class StockPlan {
  public:
    using Clock = std::chrono::steady_clock;

    explicit StockPlan(std::size_t size) : size_(size) {}

    [[nodiscard]] std::size_t size() const { return size_; }

    // A session begins, with a worker of the stock or without: it has the machine to itself for a moment.
    void note_session(const DriverEnvironment& environment);
    // A worker of the stock has ended unasked. One that has not even been ready is tried again later and later, and not
    // in its environment, which may show the driver no device.
    void note_failure(const DriverEnvironment& environment, bool was_ready);
    void note_ready() { failures_ = 0; }

    // Nothing is to be started before.
    [[nodiscard]] Clock::time_point start_after() const { return start_after_; }

    struct Changes {
        std::vector<DriverEnvironment> start;
        std::vector<std::size_t> end;  // places in what was given
    };
    // What is to be done so that the stock is what it should be; `existing`: its workers, ready or not.
    [[nodiscard]] Changes changes(const std::vector<const DriverEnvironment*>& existing) const;

  private:
    const std::size_t size_;
    std::deque<DriverEnvironment> recent_{{}};  // the last one first, each once
    Clock::time_point start_after_{};
    unsigned failures_ = 0;  // one after the other, of workers that were not ready
};

}  // namespace gpupool::daemon
