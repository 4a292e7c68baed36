// The worker's end of its daemon's supervision: how a worker gets its session, tells how it is, and knows when to end.
//
// Life: `open()` takes the descriptor that the daemon left at exec (`--supervision-fd N`) and waits for the Assignment
// with the client's connection. Before it may come a Preparation: then the worker is one for the stock, and waits for
// the Assignment with `await_assignment()` once it is prepared, for as long as the daemon lives. `start()` begins a
// thread that reports at once, whenever something changed, and at least once a second. When the daemon goes away the
// thread looks for the next one at the Assignment's supervision path, for the grace that the Assignment names, and
// introduces itself again; after the grace the worker must end.
//
// Ending: whenever the worker has to end (told to Stop, daemon gone for longer than the grace, `end_within()`), the
// handler is told why, once. A worker that is still there `Limits::stop_timeout` later is ended by this thread
// with _exit(), whatever its other threads are stuck in: a hung driver call never leaves an orphan.
//
// Ownership: the link owns its socket; the client's connection is the caller's once taken. Handlers outlive the link.
// Threads: all methods after start() from any thread. Handlers are called by the link's thread: they must not block for
//   long and must not destroy the link.
// Errors: `open()` fails with `closed` when the daemon went away first (the worker then ends: it has no session),
//   `timed_out`, `invalid_input`.
#pragma once

#include <capnp/message.h>

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
#include "common/unique_fd.h"
#include "protocol/schema/supervision.capnp.h"
#include "server/supervision/message_socket.h"

namespace gpupool::supervision {

struct WorkerLimits {
    std::chrono::milliseconds assignment_timeout{10000};
    std::chrono::milliseconds report_interval{1000};
    std::chrono::milliseconds least_between_reports{20};  // of memory, which may change all the time
    std::chrono::milliseconds reconnect_interval{100};
    std::chrono::milliseconds stop_timeout{2000};
};

struct WorkerHandlers {
    // The worker has to end now: tell the client why, stop, exit. Called once.
    std::function<void(const std::string& reason)> stop;

    // The client's end of the connection given to watch_client() is closed: no more will come. Called once. It comes
    // as soon as the operating system knows, even while nobody reads the connection.
    std::function<void()> client_gone;

    // One more connection of the client has come, for bulk data alone.
    std::function<void(std::size_t index, std::vector<UniqueFd> connection)> lane;
};

class WorkerLink {
  public:
    static Result<std::unique_ptr<WorkerLink>> open(int supervision_descriptor, WorkerLimits limits = {});
    ~WorkerLink();
    WorkerLink(const WorkerLink&) = delete;
    WorkerLink& operator=(const WorkerLink&) = delete;

    // What a worker for the stock is to do first; nothing for one that has a session. Valid as long as the link lives.
    [[nodiscard]] const std::optional<schema::Preparation::Reader>& preparation() const { return preparation_; }
    // Says that it is done; returns with the session. Asks, and says, whether it holds a context, as long as it does.
    Status await_assignment(const std::function<bool()>& holds_context);

    // Valid as long as the link lives. Its fields were checked to be readable.
    [[nodiscard]] schema::Assignment::Reader assignment() const { return assignment_; }

    // What the client's connection consists of (Connection::descriptors(), for transport::adopt()), once; every call
    // after it gives nothing.
    [[nodiscard]] std::vector<UniqueFd> take_connection() { return std::exchange(connection_, {}); }

    void start(WorkerHandlers handlers);

    // What the next report says; it is sent at once when something changed.
    void set_state(const std::string& state);          // starting, running, disconnected, ending
    void set_devices(std::vector<std::string> uuids);  // as probes write them; in the order of the next
    void set_memory_used(std::vector<std::uint64_t> bytes_by_device);

    // Watches the descriptor of a connection (a duplicate is made) and calls client_gone.
    Status watch_client(int connection_descriptor);

    // The worker is ending by itself (goodbye, end of the connection): reports `ending`, and ends the process when it
    // is still there after `timeout`. The stop handler is not called.
    void end_within(std::chrono::milliseconds timeout);

  private:
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
    // What every report repeats. A reader may be read only so often (it counts, against hostile messages).
    capnp::MallocMessageBuilder report_;
    std::vector<UniqueFd> connection_;
    WorkerHandlers handlers_;
    UniqueFd wake_;  // eventfd
    std::int64_t started_unix_ms_ = 0;
    std::thread thread_;

    // The link's thread alone.
    MessageSocket socket_;
    std::vector<Message> early_messages_;  // came right behind the Assignment
    UniqueFd client_;
    Clock::time_point next_report_{}, last_report_{};
    Clock::time_point connected_at_{};
    Clock::time_point daemon_lost_at_{};
    bool stop_called_ = false;

    // Shared; guarded by mutex_.
    mutable Mutex mutex_;
    std::string state_ GP_GUARDED_BY(mutex_) = "starting";
    std::vector<std::string> device_uuids_ GP_GUARDED_BY(mutex_);
    std::vector<std::uint64_t> memory_used_bytes_ GP_GUARDED_BY(mutex_);
    UniqueFd new_client_ GP_GUARDED_BY(mutex_);
    Clock::time_point process_deadline_ GP_GUARDED_BY(mutex_) = Clock::time_point::max();
    bool report_due_ GP_GUARDED_BY(mutex_) = true;
    bool memory_due_ GP_GUARDED_BY(mutex_) = false;
    bool finished_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::supervision
