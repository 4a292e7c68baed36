// The worker's end of the supervision socket: receives the session, reports the worker's state, and ends the worker.
//
// Life: `open()` takes the descriptor that the daemon passed at exec (`--supervision-fd N`) and waits for the
// Assignment with the client's connection. If a Preparation arrives first, the worker is one of the stock: it prepares
// itself and then waits in `await_assignment()`, for as long as the daemon lives. `start()` begins a thread that
// reports at once, on every change, and at least once a second. If the daemon goes away, the thread connects to the
// next one at the Assignment's supervision path and reports again. If there is none within the grace period that the
// Assignment names, the worker ends.
//
// Ending: when the worker has to end (a Stop message, grace period over, `end_within()`), the thread calls the stop
// handler once, with the reason (`end_within()` does not). If the process still exists `WorkerLimits::stop_timeout`
// later, the thread calls _exit(), whatever other threads are blocked in. So a hung driver call never leaves an orphan.
//
// Ownership: the link owns its socket. The caller owns the client's connection once taken. Handlers outlive the link.
// Threads: all methods after start() from any thread. The link's thread calls the handlers, which must not block for
//   long and must not destroy the link.
// Errors: `open()` fails with `closed` if the daemon went away first (the worker then ends, since it has no session),
//   `timed_out`, `invalid_input`.
#pragma once

#include <capnp/message.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/session_counters.h"
#include "common/unique_fd.h"
#include "protocol/schema/supervision.capnp.h"
#include "server/supervision/job_account.h"
#include "server/supervision/message_socket.h"
#include "server/supervision/session_limits.h"

namespace gpupool::supervision {

struct WorkerLimits {
    std::chrono::milliseconds assignment_timeout{10000};
    std::chrono::milliseconds report_interval{1000};
    std::chrono::milliseconds least_between_reports{20};  // for memory reports, since memory may change all the time
    std::chrono::milliseconds reconnect_interval{100};
    std::chrono::milliseconds stop_timeout{2000};
};

struct WorkerHandlers {
    // The worker has to end now: send the client the reason, stop, exit. Called once.
    std::function<void(const std::string& reason)> stop;

    // The client closed its end of the connection given to watch_client(). Called once, as soon as the operating system
    // knows, even if no thread reads the connection.
    std::function<void()> client_gone;

    // The session has other limits from now on.
    std::function<void(const SessionLimits& limits)> limits;

    // A lane of the client has connected.
    std::function<void(std::size_t index, std::vector<UniqueFd> connection)> lane;
};

class WorkerLink {
  public:
    static Result<std::unique_ptr<WorkerLink>> open(int supervision_descriptor, WorkerLimits limits = {});
    ~WorkerLink();
    WorkerLink(const WorkerLink&) = delete;
    WorkerLink& operator=(const WorkerLink&) = delete;

    // How a worker of the stock prepares itself; empty for one that has a session. Valid as long as the link lives.
    [[nodiscard]] const std::optional<schema::Preparation::Reader>& preparation() const { return preparation_; }
    // Reports that the preparation is done and waits for the Assignment. While the worker holds a context, calls
    // `holds_context` once per report interval, and reports when it returns false.
    Status await_assignment(const std::function<bool()>& holds_context);

    // Valid as long as the link lives. Its fields were checked to be readable.
    [[nodiscard]] schema::Assignment::Reader assignment() const { return assignment_; }

    // The descriptors of the client's connection (Connection::descriptors(), for transport::adopt()). Later calls
    // return nothing.
    [[nodiscard]] std::vector<UniqueFd> take_connection() { return std::exchange(connection_, {}); }

    // The folder of the tenant's code images, which came with the Assignment; empty if none are kept, or taken already.
    UniqueFd take_image_folder() { return std::move(image_folder_); }

    // The job's account of device memory, which came with the Assignment. The session's slot is the Assignment's.
    Result<JobAccount> open_account() const;

    void start(WorkerHandlers handlers);

    // The content of the next report, which is sent at once if something changed.
    void set_state(const std::string& state);          // starting, running, disconnected, ending
    void set_devices(std::vector<std::string> uuids);  // in the format of probes and the order of set_memory_used()
    void set_memory_used(std::vector<std::uint64_t> bytes_by_device);
    // Reasons for which queued work waits, and how many entries wait for each.
    using Waits = std::vector<std::pair<std::string, std::uint32_t>>;
    void set_waits(Waits waits);

    // What the session does, for the reports. Any thread.
    [[nodiscard]] const std::shared_ptr<SessionCounters>& counters() const { return counters_; }

    // Watches a duplicate of the connection's descriptor and calls client_gone.
    Status watch_client(int connection_descriptor);

    // The worker is ending by itself (goodbye, or end of the connection). Reports `ending`, and ends the process if it
    // still exists after `timeout`. Does not call the stop handler.
    void end_within(std::chrono::milliseconds timeout);
    // Waits until a report has been sent that has all that was set before, for at most `timeout`.
    void await_report(std::chrono::milliseconds timeout);

  private:
    // Changes a value that the next report has.
    template <class Value>
    void set_value(Value WorkerLink::*member, Value value);

    WorkerLink(MessageSocket socket, WorkerLimits limits);
    Status receive_orders();
    Status report_in_stock(bool holds_context);
    Result<Message> receive_first(std::chrono::steady_clock::time_point deadline);
    Status take_assignment(Message received);

    void run();
    int poll_timeout_ms() const;
    void wait(int timeout_ms);
    void read_messages();
    void handle_messages(std::vector<Message>& messages);
    void handle_client();
    void send_report();
    std::chrono::milliseconds idle_for();
    void lose_daemon(const std::string& why);
    void find_daemon();
    void stop(const std::string& reason);
    void enforce_deadline();
    void wake();

    using Clock = std::chrono::steady_clock;

    const WorkerLimits limits_;
    Message preparation_message_;
    std::unique_ptr<capnp::FlatArrayMessageReader> preparation_reader_;
    std::optional<schema::Preparation::Reader> preparation_;
    Message assignment_message_;
    std::unique_ptr<capnp::FlatArrayMessageReader> assignment_reader_;
    schema::Assignment::Reader assignment_;
    // The parts that all reports share. Kept as a builder, since a Cap'n Proto reader counts accesses and runs out.
    capnp::MallocMessageBuilder report_;
    std::vector<UniqueFd> connection_;
    UniqueFd account_, image_folder_, runtime_folder_;
    WorkerHandlers handlers_;
    UniqueFd wake_;  // eventfd
    std::int64_t started_unix_ms_ = 0;
    std::thread thread_;

    // Used by the link's thread only.
    MessageSocket socket_;
    std::vector<Message> early_messages_;  // arrived together with the Assignment
    UniqueFd client_;
    Clock::time_point next_report_{}, last_report_{};
    Clock::time_point connected_at_{};
    Clock::time_point daemon_lost_at_{};
    bool account_due_ = false;  // the next report goes to a daemon that does not have it yet
    bool stop_called_ = false;
    std::uint64_t commands_seen_ = 0;
    Clock::time_point active_at_{};

    // Shared, guarded by mutex_.
    mutable Mutex mutex_;
    std::string state_ GP_GUARDED_BY(mutex_) = "starting";
    std::vector<std::string> device_uuids_ GP_GUARDED_BY(mutex_);
    std::vector<std::uint64_t> memory_used_bytes_ GP_GUARDED_BY(mutex_);
    const std::shared_ptr<SessionCounters> counters_ = std::make_shared<SessionCounters>();
    Waits waits_ GP_GUARDED_BY(mutex_);
    UniqueFd new_client_ GP_GUARDED_BY(mutex_);
    Clock::time_point process_deadline_ GP_GUARDED_BY(mutex_) = Clock::time_point::max();
    bool report_due_ GP_GUARDED_BY(mutex_) = true;
    std::uint64_t reports_wanted_ GP_GUARDED_BY(mutex_) = 0, reports_sent_ GP_GUARDED_BY(mutex_) = 0;
    Condition report_sent_;
    bool values_due_ GP_GUARDED_BY(mutex_) = false;
    bool finished_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::supervision
