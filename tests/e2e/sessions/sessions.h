// A server on the software GPU with its real worker, programs that run on it, and the bystander, whose results must
// stay right whatever happens to other sessions.
//
// Ownership: destructors end servers and programs. Threads: the test's. Errors: test failures.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/daemon/harness.h"

namespace gpupool::test {

// How long a program that does not hang may take under a sanitizer on a loaded machine.
constexpr milliseconds kTimeout(180000);

// Settings of a gpupoold with the real worker; `settings` as for Daemon.
std::string session_settings(const std::string& settings = "");

// A program that uses the client library, with its output redirected to a file.
class Program {
  public:
    Program(const Daemon& daemon, const std::vector<std::string>& arguments,
            const std::vector<std::string>& environment = {});
    ~Program();
    Program(const Program&) = delete;

    [[nodiscard]] pid_t process() const { return process_; }
    [[nodiscard]] std::string output() const;
    [[nodiscard]] std::string errors() const;
    // Waits for a line that begins with `word` and returns the number after it; -1 on a timeout.
    [[nodiscard]] long long number(const std::string& word, milliseconds timeout = kTimeout) const;
    [[nodiscard]] bool says(const std::string& word, milliseconds timeout = kTimeout) const {
        return number(word, timeout) >= 0;
    }
    void signal(int number) const;
    void end_input();  // closes its stdin
    // Makes a program in the mode `steady` check more results; true when they were right.
    [[nodiscard]] bool checks_again();
    // True once its main thread is blocked, as inside a call that waits.
    [[nodiscard]] bool blocks() const;
    // The status as waitpid returns it; -1 when the program still runs after `timeout`.
    int wait(milliseconds timeout = kTimeout);
    // True when it ended by itself with status 0 in time; on failure prints its output.
    [[nodiscard]] ::testing::AssertionResult succeeds(milliseconds timeout = kTimeout);

  private:
    TemporaryFolder folder_;
    pid_t process_ = -1;
    int input_ = -1;
    int status_ = -1;
    int asked_ = 0;  // by checks_again()
};

// The command line for a mode of gpupool_session_program.
std::vector<std::string> session_program(const std::string& mode);

// The session of that process, once it is listed.
cli::SessionStatus session_of(const Daemon& daemon, pid_t process);

// True when within `timeout` no session with that worker is listed and its process is gone.
bool is_gone(const Daemon& daemon, const cli::SessionStatus& session, milliseconds timeout = milliseconds(1000));

std::int64_t now_ms();

// A server with the bystander: a session that checks its results without end beside the tested one.
//
// A test leaves the server and the bystander to the next test in the same process, if that has the same settings: to
// start them takes longer than most tests. It does not if it failed, restarted the server or ended the bystander.
class SessionTest : public ::testing::Test {
  protected:
    void SetUp() override;
    // Checks that the bystander's results are right, that a new session works, and that nothing of other sessions is
    // left. At the server's end also checks that the bystander leaves nothing.
    void TearDown() override;
    // Stops the program, in the mode `steady`, and lets it continue: its session stays.
    void expect_session_survives_stop(Program& program);
    // The sessions other than the bystander's.
    [[nodiscard]] std::vector<cli::SessionStatus> others() const;
    // What the server and its workers have logged since this test began.
    [[nodiscard]] std::string server_log() const { return daemon_->log().substr(log_begin_); }

    std::unique_ptr<Daemon> daemon_;
    std::unique_ptr<Program> bystander_;
    std::string settings_;
    bool bystander_survives_ = true;
    bool shares_server_ = true;  // false: the server is started for this test, and ends with it

  private:
    std::size_t log_begin_ = 0;
};

}  // namespace gpupool::test
