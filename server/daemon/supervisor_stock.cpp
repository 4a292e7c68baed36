// The Supervisor's stock: workers that have initialised the driver and wait for a session.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "common/log.h"
#include "common/visible_devices.h"
#include "server/daemon/supervisor.h"

namespace gpupool::daemon {

namespace {

// Checks the process itself, since its end may not have been handled yet.
bool still_runs(const Session& worker) {
    pollfd process{worker.pidfd.get(), POLLIN, 0};
    return ::poll(&process, 1, 0) == 0;
}

}  // namespace

std::vector<Session*> Supervisor::stock() const {
    std::vector<Session*> workers;
    for (const auto& [id, session] : sessions_) {
        if (session->in_stock && session->life.state() != WorkerState::retired) {
            workers.push_back(session.get());
        }
    }
    return workers;
}

std::size_t Supervisor::session_count() const {
    return static_cast<std::size_t>(
        std::count_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return !entry.second->in_stock; }));
}

// No context may be on the GPU of an exclusive job, or take memory for which a session waits.
std::optional<std::size_t> Supervisor::stock_device(const DriverEnvironment& environment) {
    if (!config_.stock_contexts || !places_.waiters().empty()) {
        return std::nullopt;
    }
    std::vector<DeviceUuid> uuids;
    for (const ProbedDevice& device : parts_.driver.devices) {
        uuids.push_back(parse_uuid(device.uuid));
    }
    const auto value = environment.find("CUDA_VISIBLE_DEVICES");
    const auto seen =
        visible_devices(value == environment.end() ? std::nullopt : std::optional<std::string>(value->second), uuids);
    if (seen.empty()) {
        return std::nullopt;
    }
    const auto device = static_cast<std::size_t>(seen.front());
    const bool fits = !places_.pool().is_exclusive(device) &&
                      places_.pool().has_room(device, parts_.driver.devices[device].context_bytes);
    return fits ? std::optional(device) : std::nullopt;
}

void Supervisor::account_stock() {
    const bool in_the_way = !places_.waiters().empty();
    for (Session* const worker : stock()) {
        if (worker->context_device && (in_the_way || places_.pool().is_exclusive(*worker->context_device))) {
            end_stock_worker(*worker, "a session needs the GPU on which it has a context");
        }
    }
    std::vector<std::size_t> contexts(parts_.driver.devices.size());
    for (const auto& [id, session] : sessions_) {  // also those whose process has yet to end
        if (session->in_stock && session->context_device) {
            ++contexts[*session->context_device];
        }
    }
    places_.set_stock(contexts);
}

void Supervisor::tend_stock() {
    if (stopping_ || departure_ == Departure::handed_on) {
        return;
    }
    account_stock();
    if (plan_.start_after() > loop_.now()) {
        stock_timer_.set(plan_.start_after());
        return;
    }
    const auto workers = stock();
    std::vector<const DriverEnvironment*> environments;
    for (const Session* worker : workers) {
        environments.push_back(&worker->environment);
    }
    const auto changes = plan_.changes(environments);
    for (const std::size_t place : changes.end) {
        end_stock_worker(*workers[place], "recent sessions use another environment");
    }
    for (const DriverEnvironment& environment : changes.start) {
        if (const Status started = start_stock_worker(environment); !started) {
            log::warn("no worker for the stock: {}", started.error().message);
            plan_.note_failure(environment, false);
            stock_timer_.set(plan_.start_after());
            break;
        }
    }
    if (!changes.start.empty()) {
        account_stock();
    }
}

Status Supervisor::start_stock_worker(const DriverEnvironment& environment) {
    auto worker = new_worker(WorkerState::preparing);
    if (!worker) {
        return worker.error();
    }
    Session& session = *worker->session;
    session.in_stock = true;
    session.environment = environment;
    capnp::MallocMessageBuilder message;
    auto preparation = message.initRoot<schema::ToWorker>().initPrepare();
    preparation.setSessionId(session.report.session_id.c_str());
    preparation.setDriverPath(parts_.driver.path.c_str());
    preparation.setDaemonProcessId(static_cast<std::uint32_t>(::getpid()));
    preparation.setLogLevel(config_.log_level.c_str());
    session.context_device = stock_device(environment);
    preparation.setContext(session.context_device.has_value());
    auto entries = preparation.initEnvironment(static_cast<unsigned>(environment.size()));
    unsigned next = 0;
    for (const auto& [name, value] : environment) {
        entries[next].setName(name.c_str());
        entries[next++].setValue(value.c_str());
    }
    GPUPOOL_TRY(session.link.send(message));
    GPUPOOL_TRY(launch(*worker, environment));
    log::debug("worker {} for the stock", session.process);
    return {};
}

Session* Supervisor::find_in_stock(const DriverEnvironment& environment) const {
    for (Session* worker : stock()) {
        if (worker->life.state() == WorkerState::ready && worker->environment == environment && still_runs(*worker)) {
            return worker;
        }
    }
    return nullptr;
}

void Supervisor::end_stock_worker(Session& worker, const char* why) {
    log::debug("worker {} of the stock is not needed: {}", worker.process, why);
    // It serves no session, so it can be killed without notice.
    note(worker, WorkerEvent::not_needed);
    worker.kill_now();
}

}  // namespace gpupool::daemon
