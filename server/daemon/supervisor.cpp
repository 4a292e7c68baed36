#include "server/daemon/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "common/log.h"
#include "common/processors.h"
#include "server/daemon/status_message.h"

namespace gpupool::daemon {

namespace {

static_assert(transport::kMaxDescriptors + 1 <=
              supervision::kMaxDescriptors);  // a connection's descriptors and an account's fit into one message

// Three issuers were fastest for a program with four threads, each launching to a stream of its own, on a machine with
// idle processors.
std::size_t default_issuers() {
    return processors_allowed() >= 8 ? 3 : 0;
}

std::uint64_t default_shared_memory_bytes() {
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    const auto page_bytes = ::sysconf(_SC_PAGESIZE);
    return pages < 0 || page_bytes < 0 ? 0
                                       : static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes) / 4;
}

// The contexts of the stock are on the first device (server/worker/session/prepared.h).
std::vector<Accounts::Device> account_devices(const DriverFacts& driver, std::size_t stock_contexts) {
    std::vector<Accounts::Device> devices;
    for (const ProbedDevice& device : driver.devices) {
        const std::uint64_t set_aside = devices.empty() ? stock_contexts * device.context_bytes : 0;
        devices.push_back({device.name, device.uuid, device.memory_total_bytes, device.context_bytes, set_aside});
    }
    return devices;
}

}  // namespace

Supervisor::Supervisor(const Config& config, SupervisorParts parts)
    : config_(config),
      parts_(std::move(parts)),
      plan_(config.stock_workers.value_or(parts_.driver.kind == "software" ? 0 : 1)),
      accounts_(account_devices(parts_.driver, config.stock_contexts ? plan_.size() : 0)) {
    if (config.session_memory.any()) {
        process_memory_ = std::make_unique<ProcessMemory>();
    }
}

std::optional<Refusal> Supervisor::reserve_place() {
    std::size_t taken = places_taken_.load();
    do {
        if (taken >= config_.max_sessions) {
            return Refusal{schema::Refused::Reason::CAPACITY,
                           fmt::format("all {} sessions of this server are in use: wait for one to end, or raise "
                                       "limits.sessions in the server's configuration",
                                       config_.max_sessions)};
        }
    } while (!places_taken_.compare_exchange_weak(taken, taken + 1));
    return std::nullopt;
}

void Supervisor::admit(std::unique_ptr<transport::Connection> connection, Admission admission) {
    auto back = parts_.inbox->post(AdmittedConnection{std::move(connection), std::move(admission)});
    if (back) {
        refuse(*back, {schema::Refused::Reason::SHUTTING_DOWN, "the server is stopping: try again later"});
    }
}

Result<std::vector<std::byte>> Supervisor::status() {
    return parts_.inbox->ask_status();
}

Departure Supervisor::run(FrontDoor& door) {
    door_ = &door;
    while (!handing_on_ && !(stopping_ && sessions_.empty() && introductions_.empty())) {
        wait_for_events();
    }
    if (handing_on_) {
        for (Session* const worker : stock()) {
            end_stock_worker(*worker, "the next daemon starts its own");
        }
        parts_.inbox->close();
        door.close();
        handle_inbox();  // connections that arrived last still get their sessions
        return Departure::handed_on;
    }
    return Departure::all_ended;
}

void Supervisor::wait_for_events() {
    tend_stock();
    std::vector<pollfd> wanted{{parts_.signals, POLLIN, 0},
                               {parts_.inbox->descriptor(), POLLIN, 0},
                               {parts_.lifeline.get(), POLLIN, 0},
                               {parts_.supervision_listener.get(), POLLIN, 0}};
    const std::size_t first_link = wanted.size();
    // Handlers add and remove sessions, so each polled session is looked up again by its id.
    std::vector<std::string> ids;
    for (const auto& [id, session] : sessions_) {
        ids.push_back(id);
        wanted.push_back({session->link.descriptor(), POLLIN, 0});
        wanted.push_back({session->pidfd.get(), POLLIN, 0});
    }
    const std::size_t first_introduction = wanted.size();
    std::vector<Introduction*> introductions;
    for (auto& introduction : introductions_) {
        introductions.push_back(&introduction);
        wanted.push_back({introduction.link.descriptor(), POLLIN, 0});
    }
    if (::poll(wanted.data(), wanted.size(), poll_timeout_ms()) > 0) {
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (wanted[first_link + 2 * i].revents != 0) {
                handle_link(*sessions_.find(ids[i])->second);
            }
            const auto still_there = sessions_.find(ids[i]);
            if (wanted[first_link + 2 * i + 1].revents != 0 && still_there != sessions_.end()) {
                handle_exit(*still_there->second);
            }
        }
        for (std::size_t i = 0; i < introductions.size(); ++i) {
            if (wanted[first_introduction + i].revents != 0) {
                handle_introduction(*introductions[i]);
            }
        }
        introductions_.remove_if([](const Introduction& introduction) { return !introduction.link.open(); });
        if (wanted[3].revents != 0) {
            accept_introductions();
        }
        if (wanted[1].revents != 0) {
            handle_inbox();
        }
        if (wanted[0].revents != 0) {
            handle_signals();
        }
        if (wanted[2].revents != 0) {
            parts_.lifeline.reset();
            begin_stop("the program that the server was started for has ended");
        }
    }
    enforce_deadlines();
}

void Supervisor::handle_signals() {
    signalfd_siginfo signal{};
    while (::read(parts_.signals, &signal, sizeof(signal)) == sizeof(signal)) {
        if (signal.ssi_signo == SIGCHLD) {
            reap_children();
        } else if (signal.ssi_signo == SIGUSR1) {
            log::info("handing {} sessions on to the next daemon", session_count());
            handing_on_ = true;
        } else if (stopping_) {
            log::warn("received another signal to stop: killing {} workers", sessions_.size());
            for (const auto& [id, session] : sessions_) {
                session->kill_now();
            }
        } else {
            begin_stop("the server is stopping");
        }
    }
}

void Supervisor::begin_stop(const std::string& reason) {
    if (stopping_) {
        return;
    }
    stopping_ = true;
    stop_reason_ = reason;
    log::info("stopping: {}; {} sessions", reason, session_count());
    // Close these first, so that no thread behind the front door waits for us while we wait for it.
    parts_.inbox->close();
    door_->close();
    parts_.supervision_listener.reset();
    ::unlink(parts_.supervision_path.c_str());
    handle_inbox();
    for (auto& introduction : introductions_) {
        introduction.deadline = std::min(introduction.deadline, Clock::now() + std::chrono::seconds(1));
    }
    for (Session* const worker : stock()) {
        end_stock_worker(*worker, "the server is stopping");
    }
    for (const auto& [id, session] : sessions_) {
        if (session->in_stock) {
            continue;
        }
        session->send_stop(reason);
        session->kill_by(Clock::now() + config_.stop_timeout, "it did not end when the server stopped");
    }
}

void Supervisor::handle_inbox() {
    std::vector<AdmittedConnection> connections;
    std::vector<StatusAnswer> questions;
    parts_.inbox->take(connections, questions);
    for (auto& admitted : connections) {
        if (stopping_) {
            refuse(admitted, {schema::Refused::Reason::SHUTTING_DOWN, "the server is stopping: try again later"});
        } else if (admitted.admission.purpose == Purpose::lane) {
            admit_lane(admitted);
        } else if (Accounts::Place place; const auto refusal = enter_account(admitted, place)) {
            log::info("{}: refused: {}", admitted.connection->peer(), refusal->message);
            refuse(admitted, *refusal);
        } else if (const auto started = start_session(admitted, std::move(place)); !started) {
            log::error("{}: no session: {}", admitted.connection->peer(), started.error().message);
            refuse(admitted, {schema::Refused::Reason::INTERNAL,
                              fmt::format("the server cannot start a session: {}", started.error().message)});
        }
    }
    for (auto& question : questions) {
        question.set_value(status_message());
    }
}

void Supervisor::refuse(AdmittedConnection& admitted, const Refusal& refusal) {
    send_refused(*admitted.connection, refusal);
    admitted.connection->shutdown();
    if (admitted.admission.purpose == Purpose::session) {
        --places_taken_;
    }
}

// Sends the same message for an unknown session and for a wrong token, so that it reveals neither.
void Supervisor::admit_lane(AdmittedConnection& admitted) {
    const LaneClaim& claim = admitted.admission.lane;
    const auto found = sessions_.find(claim.session_id);
    const bool known = found != sessions_.end() && !found->second->in_stock;  // a worker in stock has no token
    const bool matches = secret_matches(claim.session_token, known ? found->second->report.session_token : "none");
    if (!known || !matches) {
        log::warn("{}: refused a lane (a connection for bulk data): its session id and token match no session",
                  admitted.connection->peer());
        refuse(admitted, {schema::Refused::Reason::CREDENTIALS, "no session has this id and token"});
        return;
    }
    if (const auto refusal = found->second->hand_lane(claim, admitted.connection->descriptors())) {
        log::warn("session {}: {}: {}", claim.session_id, admitted.connection->peer(), refusal->message);
        refuse(admitted, *refusal);
    }
}

std::optional<Refusal> Supervisor::enter_account(AdmittedConnection& admitted, Accounts::Place& place) {
    const Admission& admission = admitted.admission;
    if (const auto unknown = admission.memory.beyond(parts_.driver.devices.size())) {
        return Refusal{schema::Refused::Reason::PROTOCOL,
                       fmt::format("the client asks for memory of device {} (GPUPOOL_MEMORY), and the server has {}: "
                                   "devices have the numbers that gpupool status shows",
                                   *unknown, parts_.driver.devices.size())};
    }
    std::vector<std::uint64_t> quotas;
    for (std::size_t device = 0; device < parts_.driver.devices.size(); ++device) {
        const std::uint64_t asked = admission.memory.bytes(device), most = config_.session_memory.bytes(device);
        quotas.push_back(asked == 0 || most == 0 ? std::max(asked, most) : std::min(asked, most));
    }
    const DriverEnvironment environment = environment_of(admission, parts_.driver.version);
    const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
    std::string job = admission.job;
    if (job.empty()) {
        const auto own = make_session_id();
        if (!own) {
            return Refusal{schema::Refused::Reason::INTERNAL, own.error().message};
        }
        job = fmt::format("{}/session {}", admission.tenant, *own);  // no name that a client can choose
    }
    auto entered =
        accounts_.enter(job, quotas, visible == environment.end() ? std::nullopt : std::optional(visible->second));
    if (auto* const refusal = std::get_if<Refusal>(&entered)) {
        return std::move(*refusal);
    }
    place = std::get<Accounts::Place>(std::move(entered));
    return std::nullopt;
}

Status Supervisor::describe_session(Session& session, const AdmittedConnection& admitted) const {
    auto& report = session.report;
    report.state = "starting";
    report.peer = admitted.connection->peer();
    report.client = admitted.admission.client;
    report.memory_quota_bytes = session.place.quota_bytes();
    report.max_lanes = config_.max_lanes;
    const auto token = make_session_token();
    if (!token) {
        return token.error();
    }
    report.session_token.assign(token->begin(), token->end());
    report.started_unix_ms =
        std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    return {};
}

bool Supervisor::hand_over(Session& session, AdmittedConnection& admitted, Accounts::Place& place) {
    session.place = std::move(place);
    Status assigned = describe_session(session, admitted);
    assigned = assigned ? assign(session, admitted) : assigned;
    if (!assigned) {
        log::warn("worker {} of the stock cannot be given a session: {}", session.process, assigned.error().message);
        end_stock_worker(session, "it does not accept the session");
        place = std::move(session.place);
        return false;
    }
    session.in_stock = false;
    session.last_heard = Clock::now();
    session.connection = std::move(admitted.connection);
    return true;
}

Status Supervisor::start_session(AdmittedConnection& admitted, Accounts::Place place) {
    const DriverEnvironment environment = environment_of(admitted.admission, parts_.driver.version);
    plan_.note_session(environment);
    if (Session* const waiting = find_in_stock(environment);
        waiting != nullptr && hand_over(*waiting, admitted, place)) {
        const auto& report = waiting->report;
        log::info("session {}: {} ({} on {}), worker {} of the stock", report.session_id, report.peer,
                  report.client.process_name, report.client.hostname, waiting->process);
        return {};
    }
    auto worker = new_worker();
    if (!worker) {
        return worker.error();
    }
    Session& session = *worker->session;
    session.place = std::move(place);
    GPUPOOL_TRY(describe_session(session, admitted));
    GPUPOOL_TRY(assign(session, admitted));
    GPUPOOL_TRY(launch(*worker));
    session.connection = std::move(admitted.connection);
    log::info("session {}: {} ({} on {}), worker {}", session.report.session_id, session.report.peer,
              session.report.client.process_name, session.report.client.hostname, session.process);
    return {};
}

Result<Supervisor::NewWorker> Supervisor::new_worker() {
    auto id = make_session_id();
    if (!id) {
        return id.error();
    }
    UniqueFd ours;
    NewWorker worker;
    GPUPOOL_TRY(supervision::make_socket_pair(ours, worker.theirs));
    worker.session = std::make_unique<Session>();
    worker.session->link = supervision::MessageSocket(std::move(ours));
    worker.session->report.session_id = *id;
    return worker;
}

Status Supervisor::launch(NewWorker& worker) {
    const auto process = spawn_worker(parts_.worker, worker.theirs.get());
    if (!process) {
        return process.error();
    }
    worker.session->process = *process;
    worker.session->child = true;
    worker.session->pidfd = open_process(*process);
    std::string id = worker.session->report.session_id;
    sessions_.emplace(std::move(id), std::move(worker.session));
    return {};
}

Status Supervisor::assign(Session& session, const AdmittedConnection& admitted) {
    capnp::MallocMessageBuilder message;
    auto assignment = message.initRoot<schema::ToWorker>().initAssignment();
    assignment.setSessionId(session.report.session_id.c_str());
    const std::string& token = session.report.session_token;
    assignment.setSessionToken({reinterpret_cast<const kj::byte*>(token.data()), token.size()});
    assignment.setMaxLanes(static_cast<std::uint32_t>(session.report.max_lanes));
    assignment.setIssuers(static_cast<std::uint32_t>(config_.issuers.value_or(default_issuers())));
    copy_hello(admitted.admission, assignment.initHello());  // examine_hello() copied it once, so it can be read
    assignment.setSharedMemoryBytes(config_.shared_memory_bytes.value_or(default_shared_memory_bytes()));
    assignment.setPeer(session.report.peer.c_str());
    assignment.setDriverPath(parts_.driver.path.c_str());
    assignment.setSupervisionPath(parts_.supervision_path.c_str());
    assignment.setDaemonGraceMilliseconds(static_cast<std::uint32_t>(config_.daemon_grace.count()));
    assignment.setMemoryQuotaBytes(session.report.memory_quota_bytes);
    assignment.setLogLevel(config_.log_level.c_str());
    auto images = assignment.initImages();
    images.setDirectory(config_.image_directory.c_str());
    images.setTenant(admitted.admission.tenant.c_str());
    images.setLimitBytes(config_.image_limit_bytes);
    auto account = assignment.initAccount();
    account.setJob(session.place.job().c_str());
    account.setSlot(static_cast<std::uint32_t>(session.place.slot()));
    std::vector<int> descriptors = admitted.connection->descriptors();
    descriptors.push_back(session.place.descriptor());
    return session.link.send(message, descriptors);
}

std::vector<std::byte> Supervisor::status_message() const {
    return make_status_message({parts_.address, parts_.driver, Clock::now() - started_, plan_.size()}, sessions_);
}

}  // namespace gpupool::daemon
