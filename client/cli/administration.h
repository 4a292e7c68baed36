// Asking a server about itself: Hello as an administrator, then Control frames.
//
// Threads: any; every call waits for at most `timeout`. Errors: the message says what happened and what to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

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
    std::uint64_t memory_quota_bytes = 0;  // 0: none
    std::string peer;
    std::string process_name;
    std::uint32_t process_id = 0;
    std::string user_name;  // empty: unknown
    std::uint32_t user_id = 0;
    std::uint64_t age_seconds = 0;
    std::uint32_t worker_process_id = 0;
    std::string state;
};

struct ServerStatus {
    std::string server;  // as it was asked for
    std::string version;
    std::string listen;
    std::string driver;
    std::int32_t driver_version = 0;
    std::uint64_t uptime_seconds = 0;
    std::uint32_t stock_wanted = 0;  // workers that wait for a session
    std::uint32_t stock_ready = 0;
    bool stock_contexts = false;  // each holds a context's device memory
    std::vector<DeviceStatus> devices;
    std::vector<SessionStatus> sessions;
};

// `server` as HOST:PORT, the port may lack.
Result<ServerStatus> ask_status(const std::string& server, const std::string& token, std::chrono::milliseconds timeout);

}  // namespace gpupool::cli
