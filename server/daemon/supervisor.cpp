#include "server/daemon/supervisor.h"

#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "common/log.h"
#include "common/processors.h"
#include "protocol/messages/session.h"
#include "protocol/schema/control.capnp.h"

namespace gpupool::daemon {

namespace {

static_assert(transport::kMaxDescriptors + 3 <= supervision::kMaxDescriptors);  // assign() sends so many

constexpr std::chrono::seconds kTrimImagesEvery{5};

// Refusals of one tenant, or of peers without one, that the audit log gets within the interval.
constexpr std::size_t kMaxAuditedRefusals = 60;
constexpr std::chrono::minutes kRefusalInterval{1};

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

Status describe(Session& session, const transport::Connection& connection, const Admission& admission,
                std::size_t max_lanes) {
    auto& report = session.report;
    report.state = "starting";
    report.peer = connection.peer();
    report.client = admission.client;
    report.memory_quota_bytes = session.place.largest_quota_bytes();
    report.max_lanes = max_lanes;
    const auto token = make_session_token();
    if (!token) {
        return token.error();
    }
    report.session_token.assign(token->begin(), token->end());
    report.started_unix_ms = unix_now_ms();
    return {};
}

supervision::SessionLimits worker_limits(const policy::Effective& limits) {
    static_assert(policy::kNoLimit == supervision::SessionLimits::kNone);
    return {limits.copy_bandwidth, limits.pinned_memory_bytes, limits.handles};
}

messages::Grant grant_message(const policy::Grant& grant) {
    return {grant.tenant, std::vector<std::uint32_t>(grant.devices.begin(), grant.devices.end()), grant.memory_bytes,
            grant.session_class, grant.priority};
}

void log_start(const Session& session, const char* origin) {
    const auto& report = session.report;
    log::info("session {}: {} ({} on {}), worker {}{}", report.session_id, report.peer, report.client.process_name,
              report.client.hostname, session.process, origin);
}

}  // namespace

Supervisor::Supervisor(Loop& loop, Background& background, const Config& config, Tenancy& tenancy,
                       SupervisorParts parts)
    : loop_(loop),
      config_(config),
      tenancy_(tenancy),
      parts_(std::move(parts)),
      plan_(config.stock_workers.value_or(parts_.driver.kind == "software" ? 0 : 1), loop.clock()),
      stock_timer_(loop, [this] { tend_stock(); }),
      background_(background),
      images_timer_(loop, [this] { tend_images(); }),
      images_(config.image_directory.empty() ? nullptr : std::make_shared<ImageFolders>(config.image_directory)),
      places_(loop, parts_.driver, tenancy.policy(),
              [this] {
                  if (reception_ != nullptr) {
                      reception_->ask_again();
                  }
              }),
      listener_watch_(loop),
      lifeline_watch_(loop) {
    tenancy.on_change([this] { change_policy(); });
    if (!config.one_tenant) {  // a daemon for one program has no administrator
        nvml_ = std::make_unique<NvmlReadings>(loop, background);
    }
}

Departure Supervisor::run(Reception& reception) {
    reception_ = &reception;
    if (parts_.supervision_listener) {
        listener_watch_.keep_waiting(parts_.supervision_listener.get(), [this] { accept_introductions(); });
    }
    if (parts_.lifeline) {
        lifeline_watch_.wait(parts_.lifeline.get(), Watch::For::reading,
                             [this] { begin_stop("the program that the server was started for has ended"); });
    }
    tend_stock();
    loop_.run();
    return departure_;
}

void Supervisor::handle_signal(int number) {
    switch (number) {
        case SIGCHLD: reap_children(); break;
        case SIGHUP:  // of an operator, or because the terminal is closed that the daemon was started from
            log::info("received SIGHUP: reading the policy again");
            tenancy_.reload();
            break;
        case SIGUSR1: hand_on(); break;
        default:
            if (!stopping_) {
                begin_stop("the server is stopping");
                break;
            }
            log::warn("received another signal to stop: killing {} workers", sessions_.size());
            for (const auto& [id, session] : sessions_) {
                session->kill_now();
            }
    }
}

void Supervisor::change_policy() {
    places_.set_policy(tenancy_.policy());
    for (const auto& [id, session] : sessions_) {
        if (!session->in_stock) {
            apply_limits(*session);
        }
    }
}

policy::Effective Supervisor::effective_limits(const Session& session) const {
    return tenancy_.policy()->limits(session.place.grant().tenant, session.report.session_id);
}

void Supervisor::apply_limits(Session& session) {
    if (session.life.over()) {
        return;
    }
    const policy::Effective limits = effective_limits(session);
    session.send_limits(worker_limits(limits));
    const std::int64_t now = unix_now_ms();
    const auto active = now - static_cast<std::int64_t>(std::min<std::uint64_t>(session.report.idle_ms, INT32_MAX));
    if (const auto why = policy::end_reason(limits, session.report.started_unix_ms, active, now)) {
        end(session, {"server", *why, EndCause::limit});
    }
}

void Supervisor::hand_on() {
    log::info("handing {} sessions on to the next daemon", session_count());
    for (Session* const worker : stock()) {
        end_stock_worker(*worker, "the next daemon starts its own");
    }
    reception_->close();
    departure_ = Departure::handed_on;
    loop_.stop();
}

void Supervisor::begin_stop(const std::string& reason) {
    if (stopping_) {
        return;
    }
    stopping_ = true;
    stop_reason_ = reason;
    log::info("stopping: {}; {} sessions", reason, session_count());
    reception_->close();
    lifeline_watch_.stop();
    listener_watch_.stop();
    parts_.supervision_listener.reset();
    ::unlink(parts_.supervision_path.c_str());
    for (const auto& introduction : introductions_) {
        introduction->timer.set_after(std::chrono::seconds(1));
    }
    for (Session* const worker : stock()) {
        end_stock_worker(*worker, "the server is stopping");
    }
    for (const auto& [id, session] : sessions_) {
        if (!session->in_stock) {
            stop(*session);
        }
    }
    end_if_empty();
}

void Supervisor::end_if_empty() {
    if (stopping_ && sessions_.empty() && introductions_.empty()) {
        loop_.stop();
    }
}

Verdict Supervisor::admit(std::unique_ptr<transport::Connection>& connection, Admission& admission, RequestId request) {
    if (admission.purpose == Purpose::lane) {
        return admit_lane(*connection, admission.lane);
    }
    Verdict verdict = admit_session(connection, admission, request);
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) {
        note_refusal(connection->peer(), admission, *refusal);
    }
    return verdict;
}

Verdict Supervisor::admit_session(std::unique_ptr<transport::Connection>& connection, Admission& admission,
                                  RequestId request) {
    DriverEnvironment environment = environment_of(admission, parts_.driver.version);
    const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
    auto decision =
        places_.ask(admission, request, visible == environment.end() ? std::nullopt : std::optional(visible->second));
    if (auto* const refusal = std::get_if<Refusal>(&decision)) {
        return std::move(*refusal);
    }
    if (const auto* const queued = std::get_if<Queued>(&decision)) {
        tend_stock();  // it may have the room that is missing
        return *queued;
    }
    auto place = std::get<Places::Place>(std::move(decision));
    if (place.visible_devices()) {
        admission.visible_devices = place.visible_devices();
        environment = environment_of(admission, parts_.driver.version);
    }
    return start_session(connection, admission, std::move(place), environment);
}

// The audit log gets a limited number of refusals, so that neither a tenant nor strangers can push out of it what else
// it has.
void Supervisor::note_refusal(const std::string& peer, const Admission& admission, const Refusal& refusal) {
    const std::string& tenant = admission.identity.name;
    events_.note_refused(tenant);
    if (loop_.now() - refusals_since_ >= kRefusalInterval) {
        refusals_since_ = loop_.now();
        refusals_.clear();
    }
    const std::size_t count = ++refusals_[tenant];
    if (count > kMaxAuditedRefusals) {
        return;
    }
    policy::AuditRecord record;
    record.event = policy::AuditEvent::refused;
    record.by = "server";
    record.tenant = tenant;
    record.job = admission.job;
    record.peer = peer;
    record.reason = refusal.message;
    if (count == kMaxAuditedRefusals) {
        record.details["further"] = "no more refusals of this tenant are recorded for a minute";
    }
    tenancy_.audit(std::move(record));
}

// Gives the same answer for an unknown session and for a wrong token, so that it reveals neither.
Verdict Supervisor::admit_lane(const transport::Connection& connection, const LaneClaim& claim) {
    const auto found = sessions_.find(claim.session_id);
    const bool known = found != sessions_.end() && !found->second->in_stock;  // a worker in stock has no token
    const bool matches = secret_matches(claim.session_token, known ? found->second->report.session_token : "none");
    if (!known || !matches) {
        return Refusal{schema::Refused::Reason::CREDENTIALS, "no session has this id and token"};
    }
    if (auto refusal = found->second->hand_lane(claim, connection.descriptors())) {
        return std::move(*refusal);
    }
    return Admitted{};
}

Verdict Supervisor::start_session(std::unique_ptr<transport::Connection>& connection, const Admission& admission,
                                  Places::Place place, const DriverEnvironment& environment) {
    // At once, so that the client does not time out while a driver starts. If the client is gone, its worker will
    // notice.
    wire::write_frame_now(*connection, wire::FrameType::ack, {});
    plan_.note_session(environment);
    if (Session* const waiting = find_in_stock(environment);
        waiting != nullptr && hand_over(*waiting, connection, admission, place)) {
        begin(*waiting, " of the stock");
    } else if (const Status started = start_worker(connection, admission, std::move(place), environment); !started) {
        log::error("{}: no session: {}", connection->peer(), started.error().message);
        return Refusal{schema::Refused::Reason::INTERNAL,
                       fmt::format("the server cannot start a session: {}", started.error().message)};
    }
    tend_stock();
    return Admitted{};
}

void Supervisor::begin(Session& session, const char* origin) {
    log_start(session, origin);
    images_timer_.set_after(kTrimImagesEvery);
    const std::string& tenant = session.place.grant().tenant;
    tenancy_.usage().start_session(session.report.session_id, tenant, tenancy_.now(),
                                   session.place.grant().seen.size());
    events_.note_admitted(tenant, session.place.waited());
    count_gpus(tenant);
    audit(policy::AuditEvent::admitted, "tenant " + tenant, session, "");
}

void Supervisor::count_gpus(const std::string& tenant) {
    tenancy_.usage().set_gpus(tenant, places_.pool().use_of(tenant).gpus, tenancy_.now());
}

void Supervisor::audit(policy::AuditEvent event, const std::string& by, const Session& session,
                       const std::string& reason) {
    policy::AuditRecord record;
    record.event = event;
    record.by = by;
    record.tenant = session.place.grant().tenant;
    record.session = session.report.session_id;
    record.job = session.place.taken() ? session.place.job() : "";
    record.peer = session.report.peer;
    record.reason = reason;
    tenancy_.audit(std::move(record));
}

void Supervisor::end(Session& session, Ending ending) {
    log::info("session {}: ending it: {}", session.report.session_id, ending.reason);
    session.send_stop(ending.reason);
    if (!session.ending) {
        session.ending = std::move(ending);
    }
    note(session, WorkerEvent::stop);
}

bool Supervisor::hand_over(Session& session, std::unique_ptr<transport::Connection>& connection,
                           const Admission& admission, Places::Place& place) {
    session.place = std::move(place);
    Status assigned = describe(session, *connection, admission, config_.max_lanes);
    assigned = assigned ? assign(session, *connection, admission) : assigned;
    if (!assigned) {
        log::warn("worker {} of the stock cannot be given a session: {}", session.process, assigned.error().message);
        end_stock_worker(session, "it does not accept the session");
        place = std::move(session.place);
        return false;
    }
    session.in_stock = false;
    session.context_device.reset();
    session.connection = std::move(connection);
    note(session, WorkerEvent::assigned);
    return true;
}

Status Supervisor::start_worker(std::unique_ptr<transport::Connection>& connection, const Admission& admission,
                                Places::Place place, const DriverEnvironment& environment) {
    auto worker = new_worker(WorkerState::starting);
    if (!worker) {
        return worker.error();
    }
    Session& session = *worker->session;
    session.place = std::move(place);
    GPUPOOL_TRY(describe(session, *connection, admission, config_.max_lanes));
    GPUPOOL_TRY(assign(session, *connection, admission));
    GPUPOOL_TRY(launch(*worker, environment));
    session.connection = std::move(connection);
    begin(session, "");
    return {};
}

std::unique_ptr<Session> Supervisor::make_session(const std::string& id, WorkerState state) {
    auto session = std::make_unique<Session>(loop_, config_, state, [this, id] { check_deadline(id); });
    session->report.session_id = id;
    return session;
}

Result<Supervisor::NewWorker> Supervisor::new_worker(WorkerState state) {
    auto id = make_session_id();
    if (!id) {
        return id.error();
    }
    UniqueFd ours;
    NewWorker worker;
    GPUPOOL_TRY(supervision::make_socket_pair(ours, worker.theirs));
    worker.session = make_session(*id, state);
    worker.session->link = supervision::MessageSocket(std::move(ours), milliseconds(0));
    return worker;
}

Status Supervisor::launch(NewWorker& worker, const DriverEnvironment& environment) {
    auto user = parts_.isolation->take_user();
    if (!user) {
        return user.error();
    }
    const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
    const auto process = spawn_worker(
        parts_.worker, worker.theirs.get(),
        parts_.isolation->sandbox(*user, parts_.driver.path,
                                  visible == environment.end() ? std::nullopt : std::optional(visible->second)));
    if (!process) {
        return process.error();
    }
    worker.session->user = std::move(*user);
    worker.session->process = *process;
    worker.session->child = true;
    add(std::move(worker.session));
    return {};
}

void Supervisor::tend_images() {
    if (images_ == nullptr) {
        return;
    }
    background_.run(
        [images = images_, limit = config_.image_limit_bytes] {
            images->trim(limit);
            return true;
        },
        [this](bool) {
            if (!sessions_.empty()) {  // workers add images at any time
                images_timer_.set_after(kTrimImagesEvery);
            }
        });
}

Status Supervisor::assign(Session& session, const transport::Connection& connection, const Admission& admission) {
    capnp::MallocMessageBuilder message;
    auto assignment = message.initRoot<schema::ToWorker>().initAssignment();
    assignment.setSessionId(session.report.session_id.c_str());
    const std::string& token = session.report.session_token;
    assignment.setSessionToken({reinterpret_cast<const kj::byte*>(token.data()), token.size()});
    assignment.setMaxLanes(static_cast<std::uint32_t>(session.report.max_lanes));
    assignment.setIssuers(static_cast<std::uint32_t>(config_.issuers.value_or(default_issuers())));
    copy_hello(admission, assignment.initHello());  // examine_hello() copied it once, so it can be read
    assignment.setSharedMemoryBytes(config_.shared_memory_bytes.value_or(default_shared_memory_bytes()));
    assignment.setPeer(session.report.peer.c_str());
    assignment.setDriverPath(parts_.driver.path.c_str());
    assignment.setSupervisionPath(parts_.supervision_path.c_str());
    assignment.setDaemonGraceMilliseconds(static_cast<std::uint32_t>(config_.daemon_grace.count()));
    assignment.setMemoryQuotaBytes(session.report.memory_quota_bytes);
    assignment.setLogLevel(config_.log_level.c_str());
    assignment.setImageLimitBytes(config_.image_limit_bytes);
    auto account = assignment.initAccount();
    account.setJob(session.place.job().c_str());
    account.setSlot(static_cast<std::uint32_t>(session.place.slot()));
    messages::write_grant(grant_message(session.place.grant()), assignment.initGrant());
    session.limits = worker_limits(effective_limits(session));
    supervision::write(*session.limits, assignment.initLimits());
    std::vector<int> descriptors = connection.descriptors();
    UniqueFd images;
    if (images_ != nullptr) {
        if (auto folder = images_->open(admission.identity.name)) {
            images = std::move(*folder);
            assignment.getFolders().setImages(true);
            descriptors.push_back(images.get());
        } else {
            log::warn("code images are not kept: {}", folder.error().message);
        }
    }
    if (parts_.runtime_folder) {
        assignment.getFolders().setRuntime(true);
        descriptors.push_back(parts_.runtime_folder.get());
    }
    descriptors.push_back(session.place.descriptor());
    return session.link.send(message, descriptors);
}

}  // namespace gpupool::daemon
