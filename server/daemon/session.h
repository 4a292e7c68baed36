// One session as the daemon knows it: its worker process, the socket to it, and what it last reported.
//
// A session is `started` by this daemon (its worker is our child, to be reaped) or `adopted` from an earlier one (then
// only a pidfd tells when it is gone). Either way it lives until its process does; the daemon's part in its end is
// a deadline after which the process is killed.
//
// Ownership: owns the socket, the pidfd, and until the worker's first report a copy of the client's connection: a
//   worker that dies before it took the session over cannot tell the client, so the daemon does.
// Threads: the daemon's one. Errors: what a worker sends is checked as a peer's input is.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/transport/connection.h"
#include "server/daemon/admission.h"
#include "server/daemon/stock.h"
#include "server/supervision/message_socket.h"

namespace gpupool::daemon {

using Clock = std::chrono::steady_clock;

struct WorkerReport {
    std::string session_id;
    std::string state;
    std::string peer;
    ClientFacts client;
    std::vector<std::string> device_uuids;         // of those that the session sees
    std::vector<std::uint64_t> memory_used_bytes;  // by device, in the same order
    std::uint64_t memory_quota_bytes = 0;
    std::int64_t started_unix_ms = 0;
    std::string session_token;
    std::size_t max_lanes = 0;
    bool holds_context = false;  // one of the stock
};

// Reads and checks a Report.
Result<WorkerReport> read_report(const supervision::Message& message);

struct Session {
    WorkerReport report;
    pid_t process = -1;
    bool child = false;
    UniqueFd pidfd;
    supervision::MessageSocket link;
    std::unique_ptr<transport::Connection> connection;

    // A worker of the stock is a session that nobody has yet.
    bool in_stock = false;
    bool ready = false;             // in stock, and prepared
    bool unwanted = false;          // in stock, and killed
    DriverEnvironment environment;  // of one of the stock: what it was prepared with
    std::uint64_t lanes_taken = 0;  // bit n: data connection n was handed on

    bool reported = false;
    bool stopping = false;
    Clock::time_point last_heard = Clock::now();
    Clock::time_point kill_at = Clock::time_point::max();
    std::string kill_reason;

    // The process has to be gone by `when`; the earliest such order counts.
    void kill_by(Clock::time_point when, std::string reason);

    // Kills the worker and, as far as they are surely its own, the processes of its group.
    void kill_now() const;

    // Tells the worker why it has to end.
    void send_stop(const std::string& reason);

    // Hands one more connection of the client on to the worker, or says why not. The caller's copy is the caller's.
    std::optional<Refusal> hand_lane(const LaneClaim& claim, const std::vector<int>& connection);
};

// A pidfd of `process`, empty when the kernel has none to give.
UniqueFd open_process(pid_t process);

// 8 random bytes as hexadecimal text, for a session's name; 32 random bytes for its secret.
Result<std::string> make_session_id();
Result<std::vector<unsigned char>> make_session_token();

}  // namespace gpupool::daemon
