// The Supervisor's handling of running workers: reports, adoption, deadlines, exits.
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "common/log.h"
#include "server/daemon/supervisor.h"

namespace gpupool::daemon {

namespace {

constexpr std::size_t kMaxIntroductions = 4096;
constexpr std::size_t kMaxIntroductionsOfProcess = 4;  // a worker connects again only after the loss of a connection

// What an earlier daemon granted the session, as its worker remembers it.
policy::Grant grant_of(const WorkerReport& report, const std::vector<ProbedDevice>& devices) {
    policy::Grant grant;
    grant.tenant = report.grant.tenant;
    grant.job = report.job;
    for (const std::uint32_t device : report.grant.devices) {
        if (device < devices.size()) {
            grant.devices.push_back(device);
        }
    }
    for (std::size_t device = 0; device < devices.size(); ++device) {
        const auto& uuids = report.device_uuids;
        if (std::find(uuids.begin(), uuids.end(), devices[device].uuid) != uuids.end()) {
            grant.seen.push_back(device);
        }
    }
    grant.session_class = report.grant.session_class;
    grant.priority = report.grant.priority;
    grant.whole = grant.devices.size() < devices.size();
    return grant;
}

std::string describe_end(int status) {
    if (WIFSIGNALED(status)) {
        return fmt::format("signal {}", WTERMSIG(status));
    }
    return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

void Supervisor::accept_introductions() {
    while (true) {
        UniqueFd socket(::accept4(parts_.supervision_listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.get() < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
                log::warn("cannot take a worker's connection: {}", system_error("accept", errno).message);
            }
            return;
        }
        ucred peer{};
        socklen_t bytes = sizeof(peer);
        const auto of_process = [&] {
            return static_cast<std::size_t>(
                std::count_if(introductions_.begin(), introductions_.end(),
                              [&](const auto& other) { return other != nullptr && other->process == peer.pid; }));
        };
        if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
            !parts_.isolation->is_workers(peer.uid) || introductions_.size() >= kMaxIntroductions ||
            of_process() >= kMaxIntroductionsOfProcess) {
            log::warn("closed the connection of process {} of user {}, which is not one of our workers", peer.pid,
                      peer.uid);
            continue;
        }
        const auto place = introductions_.insert(introductions_.end(), nullptr);
        *place = std::unique_ptr<Introduction>(
            new Introduction{supervision::MessageSocket(std::move(socket), milliseconds(0)), peer.pid, peer.uid,
                             Lifetime(config_, WorkerState::introduced, loop_.now()), Watch(loop_),
                             Timer(loop_, [this, place] { remove(place); })});
        Introduction& introduction = **place;
        introduction.timer.set(introduction.life.deadline());
        introduction.watch.keep_waiting(introduction.link.descriptor(), [this, place] { handle_introduction(place); });
    }
}

void Supervisor::remove(Introductions::iterator place) {
    (*place)->watch.stop();  // before the link closes its descriptor
    introductions_.erase(place);
    end_if_empty();
}

void Supervisor::handle_introduction(Introductions::iterator place) {
    Introduction& introduction = **place;
    auto messages = introduction.link.receive();
    if (messages && messages->empty()) {
        return;
    }
    if (messages) {
        if (auto report = read_report(messages->back())) {
            introduction.watch.stop();
            std::vector<UniqueFd>& memory = messages->front().descriptors;  // of its account
            adopt(introduction, std::move(report).value(), memory.empty() ? UniqueFd() : std::move(memory.front()));
        } else {
            log::warn("closed the connection of process {}: {}", introduction.process, report.error().message);
        }
    }
    remove(place);
}

void Supervisor::adopt(Introduction& introduction, WorkerReport report, UniqueFd account) {
    const std::string id = report.session_id;
    if (const auto known = sessions_.find(id); known != sessions_.end()) {
        // This worker's socket broke while the daemon lived. Another process must not take over its session.
        Session& session = *known->second;
        if (session.process != introduction.process) {
            log::warn("closed the connection of process {}: session {} belongs to another process",
                      introduction.process, id);
            return;
        }
        session.link_watch.stop();
        session.link = std::move(introduction.link);
        watch_link(session);
        if (!stopping_) {
            note(session, WorkerEvent::socket_back);
        }
        take_report(session, std::move(report));
        return;
    }
    auto adopted = make_session(id, WorkerState::running);
    adopted->process = introduction.process;
    adopted->user = parts_.isolation->adopt_user(introduction.user);
    adopted->link = std::move(introduction.link);
    auto place = places_.adopt(grant_of(report, parts_.driver.devices), report.account_slot, std::move(account));
    if (place) {
        adopted->place = std::move(*place);
    } else {
        log::warn("session {}: its memory is not accounted for: {}", id, place.error().message);
    }
    log::info("session {}: adopted from an earlier daemon, worker {}", id, introduction.process);
    Session& session = add(std::move(adopted));
    const std::string& tenant = session.place.grant().tenant;
    tenancy_.usage().adopt_session(id, tenant, report.bytes_in, report.bytes_out, tenancy_.now(),
                                   session.place.grant().seen.size());
    count_gpus(tenant);
    take_report(session, std::move(report));
    if (stopping_) {
        stop(session);
    }
}

Session& Supervisor::add(std::unique_ptr<Session> added) {
    Session& session = *added;
    session.pidfd = open_process(session.process);
    sessions_.emplace(session.report.session_id, std::move(added));
    watch_link(session);
    if (session.pidfd) {
        session.exit_watch.keep_waiting(session.pidfd.get(), [this, &session] { handle_exit(session); });
    }
    session.timer.set(session.life.deadline());
    return session;
}

void Supervisor::watch_link(Session& session) {
    session.link_watch.keep_waiting(session.link.descriptor(), [this, &session] { handle_link(session); });
}

void Supervisor::note(Session& session, WorkerEvent event) {
    if (session.life.note(event, loop_.now())) {
        session.timer.set(session.life.deadline());
    }
}

void Supervisor::stop(Session& session) {
    session.send_stop(stop_reason_);
    if (!session.ending) {
        session.ending = Ending{"server", stop_reason_, EndCause::stop};
    }
    note(session, WorkerEvent::stop);
}

void Supervisor::handle_link(Session& session) {
    auto messages = session.link.receive();
    if (!messages) {
        lose_link(session, messages.error().message);
        return;
    }
    for (const auto& message : *messages) {
        auto report = read_report(message);
        if (!report || report->session_id != session.report.session_id) {
            lose_link(session, report ? "it reports for another session" : report.error().message);
            return;
        }
        take_report(session, std::move(report).value());
    }
}

void Supervisor::take_report(Session& session, WorkerReport report) {
    session.life.note_report(loop_.now());
    if (session.life.state() == WorkerState::preparing) {
        note(session, WorkerEvent::prepared);
        session.prepared = true;
        plan_.note_ready();
    }
    // A worker that was just assigned a session may have sent this report before it read the Assignment.
    if (session.in_stock || report.state == "stock") {
        session.report.holds_context = report.holds_context;
        return;
    }
    session.connection.reset();  // from now on only the worker owns it
    note(session, WorkerEvent::reported);
    if (report.state == "ending") {
        note(session, WorkerEvent::reports_end);
    }
    session.report = std::move(report);
    compare_with_nvml(session);
    count_usage(session);
    apply_limits(session);
}

void Supervisor::count_usage(const Session& session) {
    const WorkerReport& report = session.report;
    std::uint64_t used = 0;
    for (const std::uint64_t bytes : report.memory_used_bytes) {
        used += bytes;
    }
    tenancy_.usage().set_memory(report.session_id, used, tenancy_.now());
    tenancy_.usage().set_copied(report.session_id, report.bytes_in, report.bytes_out, tenancy_.now());
}

void Supervisor::compare_with_nvml(Session& session) const {
    if (nvml_ == nullptr || nvml_->latest().number == session.memory_difference.snapshot) {
        return;
    }
    const NvmlReadings::Snapshot& snapshot = nvml_->latest();
    std::int64_t difference = 0;
    const WorkerReport& report = session.report;
    for (const ProbedDevice& device : parts_.driver.devices) {
        const auto shown = snapshot.readings.bytes.find({device.uuid, session.process});
        const auto place = std::find(report.device_uuids.begin(), report.device_uuids.end(), device.uuid);
        const auto index = static_cast<std::size_t>(place - report.device_uuids.begin());
        if (shown != snapshot.readings.bytes.end() && index < report.memory_used_bytes.size()) {
            difference +=
                static_cast<std::int64_t>(shown->second - report.memory_used_bytes[index] - device.context_bytes);
        }
    }
    if (session.memory_difference.note(snapshot.number, difference)) {
        log::warn("session {}: NVML shows {} MiB {} of its worker {} than is accounted for", report.session_id,
                  std::abs(difference) >> 20, difference > 0 ? "more" : "less", session.process);
    }
}

void Supervisor::lose_link(Session& session, const std::string& why) {
    log::debug("session {}: supervision socket closed: {}", session.report.session_id, why);
    session.link_watch.stop();
    session.link.close();
    if (session.pidfd.get() < 0 && !session.child) {
        // Without a pidfd the process's end cannot be observed; treat the closed socket as the end.
        end_session(session, "its socket was closed", session.report.state == "ending");
        return;
    }
    note(session, WorkerEvent::socket_lost);
}

void Supervisor::reap_children() {
    while (true) {
        siginfo_t child{};
        if (::waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) != 0 || child.si_pid == 0) {
            return;
        }
        const auto owner = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
            return entry.second->child && entry.second->process == child.si_pid;
        });
        if (owner == sessions_.end()) {
            ::waitpid(child.si_pid, nullptr, WNOHANG);
        } else {
            handle_exit(*owner->second);
        }
    }
}

void Supervisor::handle_exit(Session& session) {
    if (session.link.open()) {
        handle_link(session);  // its last report may arrive together with its end
    }
    // An adopted worker's exit status is unknown, but its last report says whether it was ending.
    std::string how = "ended";
    bool in_order = session.report.state == "ending";
    if (session.child) {
        ::kill(-session.process,
               SIGKILL);  // processes left in its group; the group id is still its own before waitpid()
        int status = 0;
        ::waitpid(session.process, &status, WNOHANG);
        how = describe_end(status);
        in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    end_session(session, how, in_order);
}

void Supervisor::end_session(Session& session, const std::string& how, bool in_order) {
    const std::string id = session.report.session_id;
    if (session.in_stock) {
        if (session.life.state() != WorkerState::retired) {
            log::warn("worker {} of the stock is gone ({})", session.process, how);
            plan_.note_failure(session.environment, session.prepared);
        }
        sessions_.erase(id);
        end_if_empty();
        tend_stock();
        return;
    }
    if (in_order) {
        log::info("session {}: worker {} is gone ({})", id, session.process, how);
    } else {
        log::warn("session {}: worker {} is gone ({})", id, session.process, how);
    }
    if (session.connection) {
        send_refused(*session.connection,
                     {schema::Refused::Reason::INTERNAL,
                      fmt::format("the worker ended ({}) before it took the session: see the server's log", how)});
        session.connection->shutdown();
    }
    const std::string tenant = session.place.grant().tenant;
    const Ending ending =
        session.ending.value_or(in_order ? Ending{"tenant " + tenant, "its client left", EndCause::client}
                                         : Ending{"server", how, EndCause::failure});
    audit(policy::AuditEvent::ended, ending.by, session, ending.reason);
    events_.note_ended(tenant, ending.cause);
    tenancy_.usage().end_session(id, tenancy_.now());
    if (tenancy_.policy()->changes_session(id)) {
        tenancy_.in_store(
            Tenancy::Access::changes,
            [id](policy::Store& store) -> Result<Tenancy::Answer> {
                GPUPOOL_TRY(store.forget_session(id));
                return Tenancy::Answer(messages::Done{});
            },
            [](const messages::AdministrationAnswer&) {});
    }
    tend_images();
    sessions_.erase(id);  // its place may go to a request that waits
    count_gpus(tenant);
    end_if_empty();
    tend_stock();
}

void Supervisor::check_deadline(const std::string& id) {
    const auto find = [&] {
        const auto found = sessions_.find(id);
        return found == sessions_.end() ? nullptr : found->second.get();
    };
    Session* session = find();
    // Reads pending reports first: a delay of the daemon's own loop must not count as the worker's silence.
    if (session != nullptr && session->life.deadline() <= loop_.now() && session->link.open()) {
        handle_link(*session);
        session = find();
    }
    if (session == nullptr) {
        return;
    }
    if (session->life.deadline() <= loop_.now()) {
        log::warn("session {}: killing worker {}: {}", id, session->process, session->life.rule().why);
        session->kill_now();  // the process's end arrives as an event
        session->life.note(WorkerEvent::overdue, loop_.now());
    }
    session->timer.set(session->life.deadline());
}

}  // namespace gpupool::daemon
