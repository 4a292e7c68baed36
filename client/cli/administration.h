// Queries a server's status, and sends it an administrator's requests: a Hello with that purpose, then Control frames.
//
// Ownership: values.
// Threads: any; a call waits for at most `timeout`.
// Errors: Result; the message says what happened and what to do.
#pragma once

#include <chrono>
#include <cstdint>
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
};

// `server`: HOST[:PORT] or unix:/PATH.
Result<ServerStatus> ask_status(const std::string& server, const std::string& token, std::chrono::milliseconds timeout);

// An answer that is an error of the server's becomes an Error.
Result<messages::AdministrationAnswer> administer(const std::string& server, const std::string& token,
                                                  const messages::AdministrationRequest& request,
                                                  std::chrono::milliseconds timeout);

}  // namespace gpupool::cli
