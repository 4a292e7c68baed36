// Queries a server's status, and sends it an administrator's requests: a Hello with that purpose, then Control frames.
//
// Ownership: values.
// Threads: any; a call waits for at most `timeout`.
// Errors: Result; the message says what happened and what to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/messages/administration.h"

namespace gpupool::cli {

struct DeviceStatus {
    std::uint32_t index = 0;
    std::string name;
    std::string uuid;
    std::uint64_t memory_used_bytes = 0;
    std::uint64_t memory_total_bytes = 0;
    std::uint64_t memory_promised_bytes = 0;
    std::optional<int> utilization_percent;
    std::optional<int> temperature_celsius;
    std::uint32_t waiting = 0;  // requests in the queue that may get it
    std::string session_class;  // of the sessions on it; empty: none
};

struct DeviceShare {
    std::uint32_t device = 0;
    std::uint64_t memory_used_bytes = 0;
    std::uint64_t memory_quota_bytes = 0;  // 0: none
};

struct SessionStatus {
    std::string id;
    std::uint32_t device = 0;
    std::uint64_t memory_used_bytes = 0;
    std::uint64_t memory_quota_bytes = 0;  // 0: no quota
    std::string peer;
    std::string process_name;
    std::uint32_t process_id = 0;
    std::string user_name;  // empty: unknown
    std::uint32_t user_id = 0;
    std::uint64_t age_seconds = 0;
    std::uint32_t worker_process_id = 0;
    std::string state;
    std::int64_t memory_difference_bytes = 0;  // that NVML shows beyond the account; 0: none, or not known
    std::vector<std::pair<std::string, std::uint32_t>> waits;  // reasons, and how many entries wait for each
    std::string tenant;
    std::string job;  // empty: one of its own
    std::string session_class;
    std::uint32_t priority = 0;
    std::vector<DeviceShare> devices;  // in the session's order
    std::uint64_t bytes_in = 0;        // copied from its client to devices
    std::uint64_t bytes_out = 0;
    std::string hostname;
};

// A request that waits for room.
struct WaitingRequest {
    std::uint32_t position = 0;
    std::string tenant;
    std::string peer;
    std::string process_name;
    std::uint64_t waited_seconds = 0;
    std::string why;
};

struct ServerStatus {
    std::string server;  // as it was addressed
    std::string version;
    std::string listen;
    std::string driver;
    std::int32_t driver_version = 0;
    std::uint64_t uptime_seconds = 0;
    std::uint32_t stock_wanted = 0;  // workers to keep ready
    std::uint32_t stock_ready = 0;
    bool stock_contexts = false;  // each ready worker holds a context's device memory
    std::vector<DeviceStatus> devices;
    std::vector<SessionStatus> sessions;
    std::vector<WaitingRequest> queue;
};

// `server`: HOST[:PORT] or unix:/PATH.
Result<ServerStatus> ask_status(const std::string& server, const std::string& token, std::chrono::milliseconds timeout);

// An answer that is an error of the server's becomes an Error.
Result<messages::AdministrationAnswer> administer(const std::string& server, const std::string& token,
                                                  const messages::AdministrationRequest& request,
                                                  std::chrono::milliseconds timeout);

}  // namespace gpupool::cli
