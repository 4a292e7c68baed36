#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/unique_fd.h"
#include "server/daemon/worker_process.h"

namespace gpupool::daemon {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMaxAnswerBytes = 1u << 20;
constexpr std::size_t kMaxDevices = 1024;

// Reads until the probe closes its stdout.
Status read_answer(int input, int cancel_descriptor, Clock::time_point deadline, std::string& answer) {
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) {
            return Error{ErrorCode::timed_out, "the driver did not answer in time"};
        }
        pollfd wanted[2] = {{input, POLLIN, 0}, {cancel_descriptor, POLLIN, 0}};
        if (::poll(wanted, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) {
            return system_error("poll", errno);
        }
        if (wanted[1].revents != 0) {
            return Error{ErrorCode::closed, "the server is stopping"};
        }
        if (wanted[0].revents == 0) {
            continue;
        }
        char buffer[4096];
        const auto count = ::read(input, buffer, sizeof(buffer));
        if (count == 0) {
            return {};
        }
        if (count < 0 && errno != EINTR) {
            return system_error("read", errno);
        }
        if (count > 0) {
            answer.append(buffer, static_cast<std::size_t>(count));
        }
        if (answer.size() > kMaxAnswerBytes) {
            return Error{ErrorCode::limit_exceeded, "the worker's description of the driver is longer than 1 MiB"};
        }
    }
}

// Waits for the probe to exit, and kills it at the deadline.
int reap(pid_t process, Clock::time_point deadline) {
    int status = 0;
    while (::waitpid(process, &status, WNOHANG) == 0) {
        if (Clock::now() > deadline) {
            ::kill(-process, SIGKILL);
            ::waitpid(process, &status, 0);
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return status;
}

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

Result<DriverFacts> probe_driver(const std::string& worker, const ProbeRequest& request,
                                 std::chrono::milliseconds timeout, int cancel_descriptor) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return system_error("pipe", errno);
    }
    UniqueFd input(ends[0]);
    UniqueFd output(ends[1]);
    const std::string option = request.contexts ? "--probe-contexts" : "--probe";
    const auto process = spawn(worker, {"gpupool-worker", option, request.driver}, output.get(), -1);
    if (!process) {
        return process.error();
    }
    output.reset();
    const auto deadline = Clock::now() + timeout;
    std::string answer;
    const auto read = read_answer(input.get(), cancel_descriptor, deadline, answer);
    const int status = reap(*process, read ? deadline : Clock::now());
    if (!read) {
        return read.error();
    }
    if (answer.empty()) {
        const auto end = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                             : fmt::format("exit code {}", WEXITSTATUS(status));
        return Error{ErrorCode::unavailable,
                     fmt::format("{} {} {} ended without an answer ({})", worker, option, request.driver, end)};
    }
    return parse_probe(answer);
}

}  // namespace gpupool::daemon
