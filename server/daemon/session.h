// One session as the daemon sees it: its worker process, the socket to it, and its last report.
//
// A session is either started by this daemon (its worker is a child, to be reaped) or adopted from an earlier daemon
// (only a pidfd shows when the worker ends). It lives until the worker process ends; the daemon ends it by killing
// that.
//
// Ownership: owns the socket, the pidfd and, until the worker's first report, a copy of the client's connection. If the
//   worker dies before that report, the daemon sends the client the reason.
// Threads: the loop's.
// Errors: a worker's messages are checked like any peer's.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/messages/session.h"
#include "protocol/transport/connection.h"
#include "server/daemon/admission.h"
#include "server/daemon/event_counts.h"
#include "server/daemon/isolation.h"
#include "server/daemon/lifetime.h"
#include "server/daemon/loop.h"
#include "server/daemon/places.h"
#include "server/daemon/stock.h"
#include "server/supervision/message_socket.h"
#include "server/supervision/session_limits.h"

namespace gpupool::daemon {

struct WorkerReport {
    std::string session_id;
    std::string state;
    std::string peer;
    ClientFacts client;
    std::vector<std::string> device_uuids;         // devices that the session sees
    std::vector<std::uint64_t> memory_used_bytes;  // per device, in the same order
    std::uint64_t memory_quota_bytes = 0;
    std::vector<std::pair<std::string, std::uint32_t>> waits;  // reasons, and how many entries wait for each
    std::int64_t started_unix_ms = 0;
    std::string session_token;
    std::size_t max_lanes = 0;
    bool holds_context = false;  // only reported by a worker in stock
    std::string job;             // of its account
    std::size_t account_slot = 0;
    std::uint64_t bytes_in = 0, bytes_out = 0;  // copied to devices and back so far
    messages::Grant grant;
    std::uint64_t idle_ms = 0;  // since the session last did something
};

// How much more memory NVML shows of a worker's process than is accounted for.
struct MemoryDifference {
    std::uint64_t snapshot = 0;    // the last one that was compared
    std::int64_t least_bytes = 0;  // of the readings in a row that are beyond the tolerance on the same side
    std::size_t readings = 0;      // how many those are
    std::int64_t shown_bytes = 0;  // the least, if there are enough of them
    bool logged = false;

    // True if it should be logged now.
    bool note(std::uint64_t its_snapshot, std::int64_t bytes);
};

// Reads and checks a Report.
Result<WorkerReport> read_report(const supervision::Message& message);

// Why the daemon ends a session.
struct Ending {
    std::string by;  // "server", "administrator ops"
    std::string reason;
    EndCause cause = EndCause::limit;
};

struct Session {
    Session(Loop& loop, const Config& config, WorkerState first, Loop::Callback overdue)
        : life(config, first, loop.now()), link_watch(loop), exit_watch(loop), timer(loop, std::move(overdue)) {}

    WorkerReport report;
    pid_t process = -1;
    bool child = false;
    UniqueFd pidfd;
    supervision::MessageSocket link;
    std::unique_ptr<transport::Connection> connection;
    WorkerUser user;
    Places::Place place;
    MemoryDifference memory_difference;
    std::optional<Ending> ending;                      // empty: the daemon has not ended it
    std::optional<supervision::SessionLimits> limits;  // as the worker has them; nullopt: an earlier daemon's

    Lifetime life;
    bool in_stock = false;                      // serves no client
    bool prepared = false;                      // in stock, and has been ready
    DriverEnvironment environment;              // in stock: the variables that it was prepared with
    std::optional<std::size_t> context_device;  // in stock: the server's number of the device with its context
    std::uint64_t lanes_taken = 0;              // bit n: lane n was passed to the worker

    Watch link_watch, exit_watch;  // destroyed before the descriptors that they watch
    Timer timer;                   // for the deadline of `life`

    // Kills the worker and, if they are certainly its own, the processes of its group.
    void kill_now() const;

    // Asks the worker to end, with the reason.
    void send_stop(const std::string& reason);

    // Tells the worker its limits, if it does not have them yet.
    void send_limits(const supervision::SessionLimits& wanted);

    // Passes a lane's connection to the worker, or says why not. The caller keeps its own copy of the descriptors.
    std::optional<Refusal> hand_lane(const LaneClaim& claim, const std::vector<int>& connection);
};

// Device memory that a session uses of a device, by printable() UUID. A session reports the devices that it sees,
// possibly fewer than the server has and in another order.
std::uint64_t used_on(const Session& session, const std::string& uuid);

// A pidfd of `process`; empty if the kernel provides none.
UniqueFd open_process(pid_t process);

// 8 random bytes as hexadecimal text, for a session's id; 32 random bytes for its secret.
Result<std::string> make_session_id();
Result<std::vector<unsigned char>> make_session_token();

}  // namespace gpupool::daemon
