#include "client/cli/local_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "client/cli/process.h"
#include "common/executable.h"

namespace gpupool::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kStartTimeout{90};  // starting a real driver may take long
constexpr std::chrono::seconds kStopTimeout{8};

// Reads the line that the server writes when it is ready; empty if it ended or takes too long.
std::string read_line(int descriptor, Clock::time_point deadline) {
    std::string line;
    while (line.size() < 256) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd wanted{descriptor, POLLIN, 0};
        if (left <= 0 || (::poll(&wanted, 1, static_cast<int>(left)) < 0 && errno != EINTR)) {
            return {};
        }
        char next = 0;
        const auto count = wanted.revents == 0 ? -1 : ::read(descriptor, &next, 1);
        if (count == 0) {
            return {};
        }
        if (count == 1 && next == '\n') {
            return line;
        }
        if (count == 1) {
            line += next;
        }
    }
    return {};
}

}  // namespace

LocalServer::LocalServer(LocalServer&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      lifeline_(std::move(other.lifeline_)),
      address_(std::move(other.address_)),
      token_(std::move(other.token_)) {}

Result<LocalServer> LocalServer::start(const std::string& driver, const std::string& config_file) {
    const std::string program = executable_directory() + "/gpupoold";
    if (::access(program.c_str(), X_OK) != 0) {
        return Error{ErrorCode::unavailable,
                     fmt::format("--local needs {}, which does not exist: install gpupool's server beside this command",
                                 program)};
    }
    auto ready = make_pipe();
    auto lifeline = make_pipe();
    auto token = random_token();
    if (!ready || !lifeline || !token) {
        return Error{ErrorCode::system, "cannot start a private server: out of descriptors"};
    }
    LocalServer server;
    server.token_ = std::move(token).value();
    // In an unnamed file, because every user can read a command line.
    const auto secret = make_file(server.token_ + "\n");
    if (!secret) {
        return secret.error();
    }

    SpawnRequest request;
    request.program = program;
    request.arguments = {"gpupoold", "--listen",      "127.0.0.1:0", "--log-level",  "warn",           "--ready-fd",
                         "3",        "--lifeline-fd", "4",           "--token-file", "/proc/self/fd/5"};
    const auto pass_on = [&](const char* option, const std::string& value) {
        if (!value.empty()) {
            request.arguments.insert(request.arguments.end(), {option, value});
        }
    };
    pass_on("--driver", driver);
    pass_on("--config", config_file);
    request.descriptors = {ready->write_end.get(), lifeline->read_end.get(), secret->get()};
    request.own_group = true;  // Ctrl-C is meant for the program; the server ends when this process does
    ::sigemptyset(&request.signal_mask);
    // CUDA_VISIBLE_DEVICES is for the program, which numbers devices by it. The server must see all devices.
    constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
    const char* const visible = std::getenv(kVisible);
    const std::string kept = visible == nullptr ? "" : visible;
    ::unsetenv(kVisible);
    const int failure = spawn(request, server.process_);
    if (visible != nullptr) {
        ::setenv(kVisible, kept.c_str(), 1);
    }
    if (failure != 0) {
        return system_error(fmt::format("cannot start {}", program), failure);
    }
    server.lifeline_ = std::move(lifeline->write_end);
    ready->write_end.reset();
    server.address_ = read_line(ready->read_end.get(), Clock::now() + kStartTimeout);
    if (server.address_.empty()) {
        return Error{ErrorCode::unavailable, "the private server did not start: see its own message above"};
    }
    return server;
}

void LocalServer::stop() noexcept {
    lifeline_.reset();
    if (process_ < 0) {
        return;
    }
    const auto deadline = Clock::now() + kStopTimeout;
    while (::waitpid(process_, nullptr, WNOHANG) == 0) {
        if (Clock::now() > deadline) {
            ::kill(process_, SIGKILL);  // its workers end with it
            ::waitpid(process_, nullptr, 0);
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    process_ = -1;
}

}  // namespace gpupool::cli
