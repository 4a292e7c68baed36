// The server's status as the payload of a Control frame.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/daemon/nvml_readings.h"
#include "server/daemon/session.h"
#include "server/daemon/worker_process.h"

namespace gpupool::daemon {

struct ServerFacts {
    const std::string& address;
    const DriverFacts& driver;
    TimeSource::Duration uptime;
    std::size_t stock_wanted;
    const NvmlReadings* nvml;  // null: not read
    const policy::Pool* pool;
    std::optional<std::string> tenant;  // shows what this one may see; nullopt: everything
};

// Lists at most as many sessions as fit into one frame.
std::vector<std::byte> make_status_message(const ServerFacts& server,
                                           const std::map<std::string, std::unique_ptr<Session>>& sessions,
                                           const std::vector<WaitingRequest>& waiting);

}  // namespace gpupool::daemon
