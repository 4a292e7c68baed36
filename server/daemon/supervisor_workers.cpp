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

constexpr std::chrono::milliseconds kIntroductionTimeout{5000};
constexpr std::chrono::milliseconds kLostLinkTimeout{500};
constexpr std::size_t kMaxIntroductions = 4096;
constexpr int kMaxPollMs = 60000;

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
        if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != ::geteuid() ||
            introductions_.size() >= kMaxIntroductions) {
            log::warn("closed the connection of process {} of user {}, which is not one of our workers", peer.pid,
                      peer.uid);
            continue;
        }
        introductions_.push_back(
            {supervision::MessageSocket(std::move(socket)), peer.pid, Clock::now() + kIntroductionTimeout});
    }
}

void Supervisor::handle_introduction(Introduction& introduction) {
    auto messages = introduction.link.receive();
    if (!messages) {
        introduction.link.close();
        return;
    }
    if (messages->empty()) {
        return;
    }
    auto report = read_report(messages->back());
    if (!report) {
        log::warn("closed the connection of process {}: {}", introduction.process, report.error().message);
        introduction.link.close();
        return;
    }
    std::vector<UniqueFd>& memory = messages->front().descriptors;  // of its account
    adopt(introduction, std::move(report).value(), memory.empty() ? UniqueFd() : std::move(memory.front()));
}

void Supervisor::adopt(Introduction& introduction, WorkerReport report, UniqueFd account) {
    const std::string id = report.session_id;
    if (const auto known = sessions_.find(id); known != sessions_.end()) {
        // This worker's socket broke while the daemon lived. Another process must not take over its session.
        if (known->second->process != introduction.process) {
            log::warn("closed the connection of process {}: session {} belongs to another process",
                      introduction.process, id);
            introduction.link.close();
            return;
        }
        known->second->link = std::move(introduction.link);
        if (!stopping_) {
            known->second->kill_at = Clock::time_point::max();
        }
        take_report(*known->second, std::move(report));
        return;
    }
    auto session = std::make_unique<Session>();
    session->report.session_id = id;
    session->process = introduction.process;
    session->pidfd = open_process(introduction.process);
    session->link = std::move(introduction.link);
    auto place = accounts_.adopt(report.job, report.account_slot, report.device_uuids, std::move(account));
    if (place) {
        session->place = std::move(*place);
    } else {
        log::warn("session {}: its memory is not accounted for: {}", id, place.error().message);
    }
    log::info("session {}: adopted from an earlier daemon, worker {}", id, introduction.process);
    ++places_taken_;
    auto& adopted = *session;
    sessions_.emplace(id, std::move(session));
    take_report(adopted, std::move(report));
    if (stopping_) {
        adopted.send_stop(stop_reason_);
        adopted.kill_by(Clock::now() + config_.stop_timeout, "it did not end when the server stopped");
    }
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
    session.last_heard = Clock::now();
    if (session.in_stock && !session.ready) {
        session.ready = true;
        plan_.note_ready();
    }
    // A worker that was just assigned a session may have sent this report before it read the Assignment.
    if (session.in_stock || report.state == "stock") {
        session.report.holds_context = report.holds_context;
        return;
    }
    if (!session.reported) {
        session.reported = true;
        session.connection.reset();  // from now on only the worker owns it
    }
    if (report.state == "ending") {
        session.kill_by(Clock::now() + config_.worker_ending_timeout, "it reported that it is ending but did not exit");
    }
    session.report = std::move(report);
    compare_with_nvml(session);
}

void Supervisor::compare_with_nvml(Session& session) const {
    const auto snapshot = process_memory_ == nullptr ? nullptr : process_memory_->latest();
    if (snapshot == nullptr || snapshot->number == session.memory_difference.snapshot) {
        return;
    }
    std::int64_t difference = 0;
    const WorkerReport& report = session.report;
    for (const ProbedDevice& device : parts_.driver.devices) {
        const auto shown = snapshot->bytes.find({device.uuid, session.process});
        const auto place = std::find(report.device_uuids.begin(), report.device_uuids.end(), device.uuid);
        const auto index = static_cast<std::size_t>(place - report.device_uuids.begin());
        if (shown != snapshot->bytes.end() && index < report.memory_used_bytes.size()) {
            difference +=
                static_cast<std::int64_t>(shown->second - report.memory_used_bytes[index] - device.context_bytes);
        }
    }
    if (session.memory_difference.note(snapshot->number, difference)) {
        log::warn("session {}: NVML shows {} MiB {} of its worker {} than is accounted for", report.session_id,
                  std::abs(difference) >> 20, difference > 0 ? "more" : "less", session.process);
    }
}

void Supervisor::lose_link(Session& session, const std::string& why) {
    log::debug("session {}: supervision socket closed: {}", session.report.session_id, why);
    session.link.close();
    if (session.pidfd.get() < 0 && !session.child) {
        // Without a pidfd the process's end cannot be observed; treat the closed socket as the end.
        end_session(session.report.session_id, "its socket was closed", session.report.state == "ending");
        return;
    }
    session.kill_by(Clock::now() + kLostLinkTimeout, "it closed its supervision socket");
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
    end_session(session.report.session_id, how, in_order);
}

void Supervisor::end_session(const std::string& id, const std::string& how, bool in_order) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return;
    }
    Session& session = *found->second;
    if (session.in_stock) {
        if (!session.unwanted) {
            log::warn("worker {} of the stock is gone ({})", session.process, how);
            plan_.note_failure(session.environment, session.ready);
        }
        sessions_.erase(found);
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
    sessions_.erase(found);
    --places_taken_;
}

Clock::time_point Supervisor::deadline_of(const Session& session) const {
    if (session.in_stock && session.ready) {
        return session.kill_at;
    }
    const auto silence = session.reported ? config_.worker_silence_timeout : config_.worker_start_timeout;
    return std::min(session.kill_at, session.last_heard + silence);
}

// Reads pending reports first: a delay of the daemon's own loop must not count as the worker's silence.
void Supervisor::listen_before_killing(Clock::time_point now) {
    std::vector<std::string> silent;  // by id: handling a report may remove the session
    for (const auto& [id, session] : sessions_) {
        if (now >= deadline_of(*session) && session->link.open()) {
            silent.push_back(id);
        }
    }
    for (const auto& id : silent) {
        handle_link(*sessions_.find(id)->second);
    }
}

void Supervisor::enforce_deadlines() {
    const auto now = Clock::now();
    listen_before_killing(now);
    for (const auto& [id, session] : sessions_) {
        if (now < deadline_of(*session)) {
            continue;
        }
        log::warn("session {}: killing worker {}: {}", id, session->process,
                  session->kill_at <= now ? session->kill_reason : "it has been silent for too long");
        session->kill_now();
        // The exit arrives as an event. If the process hangs in the kernel, kill it again later.
        session->kill_at = now + std::chrono::seconds(1);
        session->last_heard = now;
    }
    introductions_.remove_if([now](const Introduction& introduction) { return now >= introduction.deadline; });
}

int Supervisor::poll_timeout_ms() const {
    auto next = Clock::now() + milliseconds(kMaxPollMs);
    for (const auto& [id, session] : sessions_) {
        next = std::min(next, deadline_of(*session));
    }
    for (const auto& introduction : introductions_) {
        next = std::min(next, introduction.deadline);
    }
    if (const auto start = plan_.start_after(); start > Clock::now()) {
        next = std::min(next, start);
    }
    const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, kMaxPollMs));
}

}  // namespace gpupool::daemon
