#include "server/supervision/worker_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/clock.h"
#include "common/log.h"
#include "server/supervision/runtime_directory.h"

namespace gpupool::supervision {

using std::chrono::milliseconds;

namespace {

constexpr int kExitEndedByForce = 70;

milliseconds until(std::chrono::steady_clock::time_point when) {
    constexpr milliseconds kLongest(60000);
    const auto now = std::chrono::steady_clock::now();
    if (when - kLongest > now) {
        return kLongest;
    }
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(when - now));
}

}  // namespace

Result<std::unique_ptr<WorkerLink>> WorkerLink::open(int supervision_descriptor, WorkerLimits limits) {
    UniqueFd inherited(supervision_descriptor);
    if (::fcntl(inherited.get(), F_SETFD, FD_CLOEXEC) != 0) {
        const int cause = errno;
        (void)inherited.release();
        return system_error(
            fmt::format("descriptor {} is not a supervision socket: gpupool-worker must be started by gpupoold",
                        supervision_descriptor),
            cause);
    }
    std::unique_ptr<WorkerLink> link(new WorkerLink(MessageSocket(std::move(inherited)), limits));
    link->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (link->wake_.get() < 0) {
        return system_error("eventfd", errno);
    }
    GPUPOOL_TRY(link->receive_orders());
    return link;
}

WorkerLink::WorkerLink(MessageSocket socket, WorkerLimits limits) : limits_(limits), socket_(std::move(socket)) {
    started_unix_ms_ =
        std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

WorkerLink::~WorkerLink() {
    {
        const Lock lock(mutex_);
        finished_ = true;
    }
    if (thread_.joinable()) {
        wake();
        thread_.join();
    }
}

Result<Message> WorkerLink::receive_first(Clock::time_point deadline) {
    while (early_messages_.empty()) {
        auto messages = socket_.receive();
        if (!messages) {
            return messages.error().within("no session was assigned");
        }
        early_messages_ = std::move(*messages);
        if (!early_messages_.empty()) {
            break;
        }
        if (Clock::now() >= deadline) {
            return Error{ErrorCode::timed_out, "no session was assigned in time"};
        }
        pollfd wanted{socket_.descriptor(), POLLIN, 0};
        ::poll(&wanted, 1, static_cast<int>(until(deadline).count()));
    }
    Message first = std::move(early_messages_.front());
    early_messages_.erase(early_messages_.begin());
    return first;
}

Status WorkerLink::receive_orders() {
    auto first = receive_first(Clock::now() + limits_.assignment_timeout);
    if (!first) {
        return first.error();
    }
    try {
        preparation_message_ = std::move(*first);
        preparation_reader_ = std::make_unique<capnp::FlatArrayMessageReader>(preparation_message_.words,
                                                                              bounded_reader(kMaxMessageBytes));
        const auto message = preparation_reader_->getRoot<schema::ToWorker>();
        if (message.isPrepare()) {
            preparation_ = message.getPrepare();
            preparation_->getEnvironment();
            return {};
        }
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("the daemon's first message cannot be read: {}", exception.getDescription().cStr())};
    }
    preparation_reader_.reset();
    return take_assignment(std::move(preparation_message_));
}

Status WorkerLink::report_in_stock(bool holds_context) {
    capnp::MallocMessageBuilder message;
    auto report = message.initRoot<schema::Report>();
    report.setSessionId(preparation_->getSessionId());
    report.setWorkerProcessId(static_cast<std::uint32_t>(::getpid()));
    report.setState("stock");
    report.setContext(holds_context);
    return socket_.send(message);
}

Status WorkerLink::await_assignment(const std::function<bool()>& holds_context) {
    std::optional<bool> said;
    Result<Message> received = Error{ErrorCode::timed_out, "no message has arrived yet"};
    while (!received && received.error().code == ErrorCode::timed_out) {
        const bool holds = said.value_or(true) && holds_context();
        if (said != holds) {
            GPUPOOL_TRY(report_in_stock(holds));
            said = holds;
        }
        received = receive_first(holds ? Clock::now() + limits_.report_interval : Clock::time_point::max());
    }
    if (!received) {
        return received.error();
    }
    started_unix_ms_ =
        std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    return take_assignment(std::move(*received));
}

Status WorkerLink::take_assignment(Message received) {
    assignment_message_ = std::move(received);
    try {
        assignment_reader_ = std::make_unique<capnp::FlatArrayMessageReader>(assignment_message_.words,
                                                                             bounded_reader(kMaxMessageBytes));
        const auto message = assignment_reader_->getRoot<schema::ToWorker>();
        if (message.isStop()) {
            return Error{ErrorCode::closed, fmt::format("the daemon ordered it to stop: {}", message.getStop().cStr())};
        }
        if (!message.isAssignment()) {
            return Error{ErrorCode::invalid_input, "the daemon sent something other than an Assignment"};
        }
        assignment_ = message.getAssignment();
        assignment_.getSupervisionPath();
        auto report = report_.initRoot<schema::Report>();
        report.setSessionId(assignment_.getSessionId());
        report.setWorkerProcessId(static_cast<std::uint32_t>(::getpid()));
        report.setStartedUnixMilliseconds(started_unix_ms_);
        report.setPeer(assignment_.getPeer());
        report.setClient(assignment_.getHello().getClient());
        report.setMemoryQuotaBytes(assignment_.getMemoryQuotaBytes());
        report.setSessionToken(assignment_.getSessionToken());
        report.setMaxLanes(assignment_.getMaxLanes());
        report.initAccount().setJob(assignment_.getAccount().getJob());
        report.getAccount().setSlot(assignment_.getAccount().getSlot());
        if (assignment_.hasGrant()) {
            report.setGrant(assignment_.getGrant());
        }
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("the daemon's Assignment cannot be read: {}", exception.getDescription().cStr())};
    }
    connection_ = std::exchange(assignment_message_.descriptors, {});
    const auto take_last = [&](bool given, UniqueFd& place) {
        if (given && !connection_.empty()) {
            place = std::move(connection_.back());
            connection_.pop_back();
        }
    };
    take_last(assignment_.getAccount().getJob().size() != 0, account_);
    take_last(assignment_.getFolders().getRuntime(), runtime_folder_);
    take_last(assignment_.getFolders().getImages(), image_folder_);
    if (connection_.empty()) {
        return Error{ErrorCode::invalid_input, "the daemon's Assignment arrived without the client's connection"};
    }
    return {};
}

Result<JobAccount> WorkerLink::open_account() const {
    UniqueFd copy(::fcntl(account_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) {
        return system_error("the daemon's Assignment arrived without an account", errno);
    }
    return JobAccount::adopt(std::move(copy));
}

void WorkerLink::start(WorkerHandlers handlers) {
    handlers_ = std::move(handlers);
    thread_ = std::thread([this] {
        try {
            run();
        } catch (const kj::Exception& exception) {  // for example out of memory; the process shall end in order
            stop(fmt::format("the worker cannot report any more: {}", exception.getDescription().cStr()));
        }
    });
}

void WorkerLink::set_state(const std::string& state) {
    {
        const Lock lock(mutex_);
        if (state_ == state) {
            return;
        }
        state_ = state;
        report_due_ = true;
    }
    wake();
}

void WorkerLink::set_devices(std::vector<std::string> uuids) {
    {
        const Lock lock(mutex_);
        device_uuids_ = std::move(uuids);
        report_due_ = true;
    }
    wake();
}

template <class Value>
void WorkerLink::set_value(Value WorkerLink::*member, Value value) {
    {
        const Lock lock(mutex_);
        if (this->*member == value) {
            return;
        }
        this->*member = std::move(value);
        if (std::exchange(values_due_, true)) {
            return;
        }
    }
    wake();
}

void WorkerLink::set_waits(Waits waits) {
    set_value(&WorkerLink::waits_, std::move(waits));
}

void WorkerLink::set_memory_used(std::vector<std::uint64_t> bytes_by_device) {
    set_value(&WorkerLink::memory_used_bytes_, std::move(bytes_by_device));
}

Status WorkerLink::watch_client(int connection_descriptor) {
    UniqueFd copy(::fcntl(connection_descriptor, F_DUPFD_CLOEXEC, 0));
    if (copy.get() < 0) {
        return system_error("cannot watch the client's connection", errno);
    }
    {
        const Lock lock(mutex_);
        new_client_ = std::move(copy);
    }
    wake();
    return {};
}

void WorkerLink::end_within(milliseconds timeout) {
    {
        const Lock lock(mutex_);
        process_deadline_ = std::min(process_deadline_, Clock::now() + timeout);
        state_ = "ending";
        report_due_ = true;
    }
    wake();
}

void WorkerLink::await_report(milliseconds timeout) {
    UniqueLock lock(mutex_);
    report_due_ = true;
    const std::uint64_t wanted = ++reports_wanted_;
    wake();
    TimeSource::system().wait_for(report_sent_, lock, timeout, [&] { return reports_sent_ >= wanted; });
}

void WorkerLink::wake() {
    const std::uint64_t one = 1;
    // A full counter wakes too, so a failed write needs no handling.
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void WorkerLink::run() {
    next_report_ = Clock::now();
    connected_at_ = next_report_;
    active_at_ = next_report_;
    handle_messages(early_messages_);
    early_messages_.clear();
    while (true) {
        {
            const Lock lock(mutex_);
            if (finished_) {
                return;
            }
            if (std::exchange(report_due_, false)) {
                next_report_ = Clock::now();
            } else if (values_due_) {
                next_report_ = std::min(next_report_, last_report_ + limits_.least_between_reports);
            }
            if (new_client_.get() >= 0) {
                client_ = std::move(new_client_);
            }
        }
        enforce_deadline();
        if (!socket_.open()) {
            find_daemon();
        }
        if (socket_.open() && Clock::now() >= next_report_) {
            send_report();
        }
        wait(poll_timeout_ms());
    }
}

int WorkerLink::poll_timeout_ms() const {
    milliseconds timeout = socket_.open() ? until(next_report_) : limits_.reconnect_interval;
    const Lock lock(mutex_);
    if (process_deadline_ != Clock::time_point::max()) {
        timeout = std::min(timeout, until(process_deadline_));
    }
    return static_cast<int>(timeout.count());
}

void WorkerLink::wait(int timeout_ms) {
    // poll() ignores negative descriptors, as of a closed socket or before a client is watched.
    pollfd wanted[3] = {{wake_.get(), POLLIN, 0}, {socket_.descriptor(), POLLIN, 0}, {client_.get(), POLLRDHUP, 0}};
    if (::poll(wanted, 3, timeout_ms) <= 0) {
        return;
    }
    if (wanted[0].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof(count));
    }
    if (wanted[1].revents != 0) {
        read_messages();
    }
    if (wanted[2].revents != 0) {
        handle_client();
    }
}

void WorkerLink::read_messages() {
    auto messages = socket_.receive();
    if (!messages) {
        lose_daemon(messages.error().message);
        return;
    }
    handle_messages(*messages);
}

void WorkerLink::handle_messages(std::vector<Message>& messages) {
    for (auto& message : messages) {
        try {
            capnp::FlatArrayMessageReader reader(message.words, bounded_reader(message.bytes()));
            const auto content = reader.getRoot<schema::ToWorker>();
            if (content.isStop()) {
                stop(content.getStop().cStr());
            } else if (content.isLane()) {
                if (handlers_.lane && !message.descriptors.empty()) {
                    handlers_.lane(content.getLane().getIndex(), std::move(message.descriptors));
                }
            } else if (content.isLimits()) {
                if (handlers_.limits) {
                    handlers_.limits(read(content.getLimits()));
                }
            } else {
                log::warn("the daemon assigned a second session: ignored");
            }
        } catch (const kj::Exception& exception) {
            lose_daemon(fmt::format("it sent an unreadable message: {}", exception.getDescription().cStr()));
            return;
        }
    }
}

void WorkerLink::handle_client() {
    client_.reset();
    if (handlers_.client_gone) {
        handlers_.client_gone();
    }
}

// Since the last report in which the session was seen to do something, and so at most one report interval too short.
milliseconds WorkerLink::idle_for() {
    const std::uint64_t commands = counters_->commands.load(std::memory_order_relaxed);
    const auto now = Clock::now();
    if (std::exchange(commands_seen_, commands) != commands || counters_->working.load(std::memory_order_relaxed)) {
        active_at_ = now;
    }
    return std::chrono::duration_cast<milliseconds>(now - active_at_);
}

void WorkerLink::send_report() {
    std::uint64_t wanted = 0;
    capnp::MallocMessageBuilder message;
    message.setRoot(report_.getRoot<schema::Report>().asReader());
    auto report = message.getRoot<schema::Report>();
    {
        const Lock lock(mutex_);
        values_due_ = false;
        wanted = reports_wanted_;
        report.setState(state_);
        report.setBytesIn(counters_->bytes_in.load(std::memory_order_relaxed));
        report.setBytesOut(counters_->bytes_out.load(std::memory_order_relaxed));
        report.setIdleMilliseconds(static_cast<std::uint64_t>(idle_for().count()));
        auto memory = report.initMemoryUsed(static_cast<unsigned>(memory_used_bytes_.size()));
        for (unsigned i = 0; i < memory_used_bytes_.size(); ++i) {
            memory.set(i, memory_used_bytes_[i]);
        }
        auto waits = report.initWaits(static_cast<unsigned>(waits_.size()));
        for (unsigned i = 0; i < waits_.size(); ++i) {
            waits[i].setReason(waits_[i].first);
            waits[i].setEntries(waits_[i].second);
        }
        auto uuids = report.initDeviceUuids(static_cast<unsigned>(device_uuids_.size()));
        for (unsigned i = 0; i < device_uuids_.size(); ++i) {
            uuids.set(i, device_uuids_[i]);
        }
    }
    const int account = account_.get();
    const bool with_account = account_due_ && account >= 0;
    const auto sent = socket_.send(message, with_account ? std::span(&account, 1) : std::span<const int>());
    if (!sent) {
        lose_daemon(sent.error().message);
        return;
    }
    account_due_ = false;
    last_report_ = Clock::now();
    next_report_ = last_report_ + limits_.report_interval;
    const Lock lock(mutex_);
    reports_sent_ = wanted;
    report_sent_.notify_all();
}

void WorkerLink::lose_daemon(const std::string& why) {
    socket_.close();
    // If a daemon closes the connection at once, the grace period still counts from the first loss.
    if (Clock::now() - connected_at_ > 2 * limits_.report_interval || daemon_lost_at_ == Clock::time_point{}) {
        daemon_lost_at_ = Clock::now();
    }
    log::warn("lost the daemon ({}): waiting for another at {} for {} ms", why, assignment_.getSupervisionPath().cStr(),
              assignment_.getDaemonGraceMilliseconds());
}

void WorkerLink::find_daemon() {
    if (stop_called_) {
        return;
    }
    auto connected = connect_supervision(assignment_.getSupervisionPath().cStr(), runtime_folder_.get());
    if (connected) {
        socket_ = MessageSocket(std::move(connected).value());
        account_due_ = true;
        next_report_ = Clock::now();
        connected_at_ = next_report_;
        log::info("found the daemon again at {}", assignment_.getSupervisionPath().cStr());
        return;
    }
    const auto gone = std::chrono::duration_cast<milliseconds>(Clock::now() - daemon_lost_at_);
    if (gone.count() >= static_cast<std::int64_t>(assignment_.getDaemonGraceMilliseconds())) {
        stop(fmt::format("the gpupool server has been gone for {} ms", gone.count()));
    }
}

void WorkerLink::stop(const std::string& reason) {
    if (stop_called_) {
        return;
    }
    stop_called_ = true;
    log::info("ending: {}", reason);
    {
        const Lock lock(mutex_);
        process_deadline_ = std::min(process_deadline_, Clock::now() + limits_.stop_timeout);
        state_ = "ending";
        report_due_ = true;
    }
    if (handlers_.stop) {
        handlers_.stop(reason);
    }
}

void WorkerLink::enforce_deadline() {
    {
        const Lock lock(mutex_);
        if (Clock::now() < process_deadline_) {
            return;
        }
    }
    log::error("the worker did not end in time: ending it by force");
    ::_exit(kExitEndedByForce);
}

}  // namespace gpupool::supervision
