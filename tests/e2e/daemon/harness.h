// Real daemons and clients for the tests in this folder.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/administration.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/handshake_io.h"
#include "tests/support/waiting.h"

namespace gpupool::test {

using std::chrono::milliseconds;

bool process_exists(pid_t process);

// A folder that is removed with this object.
class TemporaryFolder {
  public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }
    // Writes a file into it and returns the file's path.
    [[nodiscard]] std::string write(const std::string& name, const std::string& text, bool executable = false) const;

  private:
    std::string path_;
};

struct ProcessEnd {
    int status = -1;  // as waitpid returns it
    std::string output;
    std::string errors;
};

// Runs a program until it ends. `environment` entries are NAME=VALUE and are added to the test's own environment.
ProcessEnd run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// A gpupoold with the stand-in worker. The destructor kills it and its workers.
class Daemon {
  public:
    // `settings` is TOML in addition to what every test needs. `environment` entries are NAME=VALUE and are added to
    // the test's own environment.
    explicit Daemon(const std::string& settings = "", std::vector<std::string> environment = {});
    ~Daemon();
    Daemon(const Daemon&) = delete;

    // Starts the process and waits until it accepts connections. The constructor calls it; a test may restart with it.
    void start();
    void signal(int number) const;
    void kill_hard();                                       // SIGKILL, and waits for the end
    std::optional<int> wait_for_end(milliseconds timeout);  // the exit status, if it ended in time

    [[nodiscard]] pid_t process() const { return process_; }
    [[nodiscard]] bool restarted() const { return starts_ > 1; }
    [[nodiscard]] const std::string& address() const { return address_; }
    [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }
    [[nodiscard]] std::string log() const;

    [[nodiscard]] Result<cli::ServerStatus> status(const std::string& token = "") const;
    // Waits until exactly `count` sessions are listed, all of them running.
    std::vector<cli::SessionStatus> sessions(std::size_t count) const;

    [[nodiscard]] std::size_t open_descriptors() const;
    [[nodiscard]] std::size_t children() const;

  private:
    TemporaryFolder folder_;
    std::string settings_;
    std::vector<std::string> environment_;
    std::string address_ = "127.0.0.1:0";
    pid_t process_ = -1;
    int starts_ = 0;
    mutable std::vector<pid_t> workers_;  // all that were seen, to be killed at the end
};

struct HelloOptions {
    std::string process_name = "test";
    std::string token;
    std::string user_name = "tester";
    std::uint32_t protocol_version = schema::PROTOCOL_VERSION;
    std::uint64_t memory_bytes = 0;
    std::vector<std::pair<std::string, std::string>> environment;
    std::vector<std::byte> calls, notices;  // that the client knows
    bool administration = false;
    bool lane = false;  // asks to be a lane, of a session that does not exist
};

std::vector<std::byte> hello_payload(const HelloOptions& options);

// A client's connection, without a channel.
class Client {
  public:
    explicit Client(const std::string& address);

    void send_hello(const HelloOptions& options = {});
    void send_bytes(std::span<const std::byte> bytes);

    // The next frame, or an error on a timeout.
    Result<wire::ReceivedFrame> read(milliseconds timeout = milliseconds(10000));
    // The text of the next frame, which must be a Refused.
    std::string refusal(milliseconds timeout = milliseconds(10000));
    // The session id from the next frame, which must be a Welcome.
    std::string welcome();
    // True when the other end closes the connection within `timeout`.
    bool ended(milliseconds timeout);
    void leave() { connection_.reset(); }
    [[nodiscard]] bool connected() const { return connection_ != nullptr; }
    [[nodiscard]] int strays() const { return strays_; }

  private:
    std::unique_ptr<transport::Connection> connection_;
    int strays_ = -1;
};

}  // namespace gpupool::test
