#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "server/daemon/worker_process.h"

namespace gpupool::daemon {

namespace {

constexpr std::size_t kMaxAnswerBytes = 1u << 20;
constexpr std::size_t kMaxDevices = 1024;

constexpr std::chrono::milliseconds kReapInterval{2};

}  // namespace

Result<DriverFacts> parse_probe(const std::string& text) {
    try {
        const auto json = nlohmann::json::parse(text);
        if (json.contains("error")) {
            return Error{ErrorCode::unavailable, json.at("error").get<std::string>()};
        }
        DriverFacts facts;
        facts.path = json.at("driver").get<std::string>();
        facts.reason = json.value("reason", "");
        facts.kind = json.value("kind", "");
        facts.version = json.at("driver_version").get<std::int32_t>();
        for (const auto& device : json.at("devices")) {
            if (facts.devices.size() >= kMaxDevices) {
                return Error{ErrorCode::limit_exceeded, "too many devices"};
            }
            facts.devices.push_back({device.at("name").get<std::string>(), device.value("uuid", ""),
                                     device.at("memory_total").get<std::uint64_t>(),
                                     device.value("context", std::uint64_t{0})});
        }
        return facts;
    } catch (const nlohmann::json::exception& exception) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("the worker's description of the driver cannot be read: {}", exception.what())};
    }
}

Probe::Probe(Loop& loop, const std::string& worker, ProbeRequest request, std::chrono::milliseconds timeout,
             std::function<void(Result<DriverFacts>)> done)
    : command_(fmt::format("{} {} {}", worker, request.contexts ? "--probe-contexts" : "--probe", request.driver)),
      done_(std::move(done)),
      loop_(loop),
      watch_(loop),
      deadline_(loop,
                [this] {
                    if (output_) {
                        finish(Error{ErrorCode::timed_out, "the driver did not answer in time"});
                    } else {
                        ::kill(-process_, SIGKILL);  // it has answered but does not exit
                    }
                }),
      reaping_(loop, [this] { reap(); }) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        finish(system_error("pipe", errno));
        return;
    }
    output_.reset(ends[0]);
    const UniqueFd input(ends[1]);
    std::vector<std::string> arguments{"gpupool-worker", request.contexts ? "--probe-contexts" : "--probe",
                                       request.driver};
    if (request.sandbox) {
        const auto items = isolation::arguments_of(*request.sandbox);
        arguments.insert(arguments.end(), items.begin(), items.end());
    }
    const auto process = spawn(worker, std::move(arguments), input.get(), -1);
    if (!process) {
        finish(process.error());
        return;
    }
    process_ = *process;
    deadline_.set_after(timeout);
    watch_.keep_waiting(output_.get(), [this] { read(); });
}

Probe::~Probe() {
    if (process_ > 0) {
        ::kill(-process_, SIGKILL);
        while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
}

// Until the process closes its stdout.
void Probe::read() {
    char buffer[4096];
    const auto count = ::read(output_.get(), buffer, sizeof(buffer));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (count <= 0) {
        finish(count < 0 ? std::optional(system_error("read", errno)) : std::nullopt);
        return;
    }
    answer_.append(buffer, static_cast<std::size_t>(count));
    if (answer_.size() > kMaxAnswerBytes) {
        finish(Error{ErrorCode::limit_exceeded, "the worker's description of the driver is longer than 1 MiB"});
    }
}

void Probe::finish(std::optional<Error> failure) {
    watch_.stop();
    output_.reset();
    failure_ = std::move(failure);
    if (process_ > 0 && failure_) {
        ::kill(-process_, SIGKILL);
    }
    reaping_.set(loop_.now());
}

void Probe::reap() {
    int status = 0;
    if (process_ > 0 && ::waitpid(process_, &status, WNOHANG) == 0) {
        reaping_.set_after(kReapInterval);
        return;
    }
    process_ = -1;
    deadline_.cancel();
    if (failure_) {
        done_(*failure_);
    } else if (answer_.empty()) {
        const auto end = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                             : fmt::format("exit code {}", WEXITSTATUS(status));
        done_(Error{ErrorCode::unavailable, fmt::format("{} ended without an answer ({})", command_, end)});
    } else {
        done_(parse_probe(answer_));
    }
}

}  // namespace gpupool::daemon
