// The daemon's supervisor: starts workers for clients, reads their reports, adopts the workers of an earlier daemon,
// and makes sure that every worker ends. lifetime.h has the rules by which it ends one, as tables.
//
// The supervisor never blocks on a client: bytes that do not fit a client's send buffer are dropped (send_refused).
//
// Ownership: owns the sessions and the runtime directory's socket.
// Threads: the loop's.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "server/daemon/config.h"
#include "server/daemon/event_counts.h"
#include "server/daemon/loop.h"
#include "server/daemon/nvml_readings.h"
#include "server/daemon/places.h"
#include "server/daemon/reception.h"
#include "server/daemon/session.h"
#include "server/daemon/tenancy.h"
#include "server/daemon/worker_process.h"
#include "server/images/image_folders.h"

namespace gpupool::daemon {

struct SupervisorParts {
    std::string worker;   // path of the executable
    std::string address;  // where clients connect
    DriverFacts driver;
    UniqueFd supervision_listener;
    std::string supervision_path;
    UniqueFd runtime_folder;  // that of the supervision path, for workers to find the next daemon
    Isolation* isolation;
    UniqueFd lifeline;  // the daemon stops when its other end is closed; empty: none
};

// How run() ended.
enum class Departure {
    all_ended,  // no worker is left
    handed_on,  // workers live on and wait for the next daemon
};

class Supervisor final : public SessionHost {
  public:
    Supervisor(Loop& loop, Background& background, const Config& config, Tenancy& tenancy, SupervisorParts parts);

    // Runs the loop until SIGTERM or SIGINT (orderly stop), SIGUSR1 (hand on), or the end of the lifeline. Closes
    // `reception` on the way.
    Departure run(Reception& reception);

    void handle_signal(int number);

    Verdict admit(std::unique_ptr<transport::Connection>& connection, Admission& admission, RequestId request) override;
    void note_refusal(const std::string& peer, const Admission& admission, const Refusal& refusal) override;
    void withdraw(RequestId request) override { places_.withdraw(request); }
    void answer(const Admission& admission, std::span<const std::byte> request,
                std::function<void(Answer)> reply) override;

    // In Prometheus' text format (supervisor_metrics.cpp).
    std::string metrics();

  private:
    // A worker that connected and has not reported its session yet.
    struct Introduction {
        supervision::MessageSocket link;
        pid_t process;
        uid_t user;
        Lifetime life;
        Watch watch;
        Timer timer;
    };
    using Introductions = std::list<std::unique_ptr<Introduction>>;

    void begin_stop(const std::string& reason);
    void hand_on();
    // Ends run() once a stop has left nothing.
    void end_if_empty();

    // A worker without a process yet.
    struct NewWorker {
        std::unique_ptr<Session> session;
        UniqueFd theirs;
    };

    Verdict admit_session(std::unique_ptr<transport::Connection>& connection, Admission& admission, RequestId request);
    Verdict start_session(std::unique_ptr<transport::Connection>& connection, const Admission& admission,
                          Places::Place place, const DriverEnvironment& environment);
    Status start_worker(std::unique_ptr<transport::Connection>& connection, const Admission& admission,
                        Places::Place place, const DriverEnvironment& environment);
    Result<NewWorker> new_worker(WorkerState state);
    std::unique_ptr<Session> make_session(const std::string& id, WorkerState state);
    // Starts the worker's process and adds its session. The first message is in the socket before that, so if the
    // daemon dies, the worker reads either the whole message or the end of the stream.
    Status launch(NewWorker& worker, const DriverEnvironment& environment);
    // Assigns the session to a worker of the stock. Returns false if that fails, and leaves the place.
    bool hand_over(Session& session, std::unique_ptr<transport::Connection>& connection, const Admission& admission,
                   Places::Place& place);
    Verdict admit_lane(const transport::Connection& connection, const LaneClaim& claim);
    Status assign(Session& session, const transport::Connection& connection, const Admission& admission);

    // Ends a session, with a reason for its user.
    void end(Session& session, Ending ending);
    void change_policy();
    [[nodiscard]] policy::Effective effective_limits(const Session& session) const;
    // Ends the session if its time is over, and tells its worker the limits that it does not have yet.
    void apply_limits(Session& session);
    // supervisor_administration.cpp
    void serve(const policy::Identity& who, messages::AdministrationRequest request,
               std::function<void(messages::AdministrationAnswer)> reply);
    // Gives a running session's job the memory that `changes` names, if any.
    Status change_memory(Session& session, const messages::ChangeLimits& changes);
    [[nodiscard]] messages::AdministrationAnswer show_limits(const messages::LimitScope& scope) const;
    void complete(messages::TenantList& list) const;
    std::vector<std::byte> status_for(const policy::Identity& who);
    [[nodiscard]] Session* find_session(const std::string& id) const;

    void audit(policy::AuditEvent event, const std::string& by, const Session& session, const std::string& reason);
    void count_gpus(const std::string& tenant);
    // A session has got its worker.
    void begin(Session& session, const char* origin);

    std::vector<Session*> stock() const;
    std::size_t session_count() const;
    void tend_stock();
    // Keeps the code images below their limit, in the background.
    void tend_images();
    Status start_stock_worker(const DriverEnvironment& environment);
    Session* find_in_stock(const DriverEnvironment& environment) const;
    // Where a new worker of the stock should make a context; nullopt: nowhere.
    [[nodiscard]] std::optional<std::size_t> stock_device(const DriverEnvironment& environment);
    // Ends workers whose contexts are in the way, and charges the pool for those of the others.
    void account_stock();
    void end_stock_worker(Session& worker, const char* why);

    void accept_introductions();
    void handle_introduction(Introductions::iterator place);
    void adopt(Introduction& introduction, WorkerReport report, UniqueFd account);
    void remove(Introductions::iterator place);

    // Adds it to the sessions and watches its worker.
    Session& add(std::unique_ptr<Session> session);
    void watch_link(Session& session);
    void handle_link(Session& session);
    void take_report(Session& session, WorkerReport report);
    void compare_with_nvml(Session& session) const;
    void count_usage(const Session& session);
    void lose_link(Session& session, const std::string& why);
    void note(Session& session, WorkerEvent event);
    void check_deadline(const std::string& id);
    void stop(Session& session);
    void reap_children();
    void handle_exit(Session& session);
    void end_session(Session& session, const std::string& how, bool in_order);

    Loop& loop_;
    const Config& config_;
    Tenancy& tenancy_;
    SupervisorParts parts_;
    const Loop::TimePoint started_ = loop_.now();
    EventCounts events_;
    Loop::TimePoint refusals_since_{};
    std::map<std::string, std::size_t> refusals_;  // by tenant, since then
    StockPlan plan_;
    Timer stock_timer_;
    Background& background_;
    Timer images_timer_;
    std::shared_ptr<ImageFolders> images_;  // null: none are kept. Shared with work in the background
    Places places_;                         // before the sessions, which have places in it
    std::map<std::string, std::unique_ptr<Session>> sessions_;  // including the stock
    std::unique_ptr<NvmlReadings> nvml_;                        // null: accounts are not compared
    Introductions introductions_;
    Watch listener_watch_, lifeline_watch_;
    Reception* reception_ = nullptr;
    bool stopping_ = false;
    std::string stop_reason_;
    Departure departure_ = Departure::all_ended;
};

}  // namespace gpupool::daemon
