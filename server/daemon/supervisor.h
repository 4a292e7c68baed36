// The daemon's main loop: starts workers for clients, reads their reports, adopts the workers of an earlier daemon, and
// makes sure that every worker ends.
//
// Why a worker ends:
//   its client left, or it failed     it exits by itself; the session is removed when the process ends
//   it reports `ending` and does not  killed after Config::worker_ending_timeout
//   it is silent                      killed after Config::worker_silence_timeout; before its first report, after
//                                     Config::worker_start_timeout
//   it closed its socket              killed shortly after, since the daemon cannot reach it any more
//   the daemon stops                  asked to stop, killed after Config::stop_timeout
//   it is in stock                    killed when it is not needed any more, and when the daemon stops or is replaced;
//                                     if the daemon dies, the kernel kills it at once
//   the daemon is gone                it waits for the next daemon for Config::daemon_grace, then exits
//
// The supervisor never blocks on a client: bytes that do not fit a client's send buffer are dropped (send_refused).
//
// Ownership: owns the sessions and the runtime directory's socket.
// Threads: one thread calls run(); any thread calls the SessionHost methods.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "server/daemon/accounts.h"
#include "server/daemon/config.h"
#include "server/daemon/front_door.h"
#include "server/daemon/inbox.h"
#include "server/daemon/process_memory.h"
#include "server/daemon/session.h"
#include "server/daemon/worker_process.h"
#include "server/supervision/runtime_directory.h"

namespace gpupool::daemon {

struct SupervisorParts {
    std::string worker;   // path of the executable
    std::string address;  // where clients connect
    DriverFacts driver;
    std::unique_ptr<Inbox> inbox;
    UniqueFd supervision_listener;
    std::string supervision_path;
    int signals = -1;   // signalfd of SIGTERM, SIGINT, SIGUSR1, SIGCHLD
    UniqueFd lifeline;  // the daemon stops when its other end is closed; empty: none
};

// How run() ended.
enum class Departure {
    all_ended,  // no worker is left
    handed_on,  // workers live on and wait for the next daemon
};

class Supervisor final : public SessionHost {
  public:
    Supervisor(const Config& config, SupervisorParts parts);

    // Runs until SIGTERM or SIGINT (orderly stop), SIGUSR1 (hand on), or the end of the lifeline. Closes `door` on the
    // way.
    Departure run(FrontDoor& door);

    std::optional<Refusal> reserve_place() override;
    void admit(std::unique_ptr<transport::Connection> connection, Admission admission) override;
    Result<std::vector<std::byte>> status() override;

  private:
    // A worker that connected and has not reported its session yet.
    struct Introduction {
        supervision::MessageSocket link;
        pid_t process = -1;
        Clock::time_point deadline;
    };

    void wait_for_events();
    void handle_signals();
    void begin_stop(const std::string& reason);
    void handle_inbox();

    // A worker without a process yet.
    struct NewWorker {
        std::unique_ptr<Session> session;
        UniqueFd theirs;
    };

    // Gives the session a place in its job's account, or says why there is none.
    std::optional<Refusal> enter_account(AdmittedConnection& admitted, Accounts::Place& place);
    Status start_session(AdmittedConnection& admitted, Accounts::Place place);
    Result<NewWorker> new_worker();
    // Starts the worker's process and adds its session. The first message is in the socket before that, so if the
    // daemon dies, the worker reads either the whole message or the end of the stream.
    Status launch(NewWorker& worker);
    // Assigns the session to a worker of the stock. Returns false if that fails, and leaves the place.
    bool hand_over(Session& session, AdmittedConnection& admitted, Accounts::Place& place);
    Status describe_session(Session& session, const AdmittedConnection& admitted) const;
    void admit_lane(AdmittedConnection& admitted);
    void refuse(AdmittedConnection& admitted, const Refusal& refusal);
    Status assign(Session& session, const AdmittedConnection& admitted);

    std::vector<Session*> stock() const;
    std::size_t session_count() const;
    void tend_stock();
    Status start_stock_worker(const DriverEnvironment& environment);
    Session* find_in_stock(const DriverEnvironment& environment) const;
    static void end_stock_worker(Session& worker, const char* why);

    void accept_introductions();
    void handle_introduction(Introduction& introduction);
    void adopt(Introduction& introduction, WorkerReport report, UniqueFd account);

    void handle_link(Session& session);
    void take_report(Session& session, WorkerReport report);
    void compare_with_nvml(Session& session) const;
    void lose_link(Session& session, const std::string& why);
    void reap_children();
    void end_session(const std::string& id, const std::string& how, bool in_order);
    void handle_exit(Session& session);
    void enforce_deadlines();
    void listen_before_killing(Clock::time_point now);
    Clock::time_point deadline_of(const Session& session) const;
    int poll_timeout_ms() const;
    std::vector<std::byte> status_message() const;

    const Config& config_;
    SupervisorParts parts_;
    const Clock::time_point started_ = Clock::now();
    StockPlan plan_;
    Accounts accounts_;                                         // before the sessions, which have places in it
    std::map<std::string, std::unique_ptr<Session>> sessions_;  // including the stock
    std::unique_ptr<ProcessMemory> process_memory_;             // null: accounts are not compared
    std::list<Introduction> introductions_;
    FrontDoor* door_ = nullptr;
    bool stopping_ = false;
    bool handing_on_ = false;
    std::string stop_reason_;

    std::atomic<std::size_t> places_taken_{0};  // sessions, and admitted clients that wait for one
};

}  // namespace gpupool::daemon
