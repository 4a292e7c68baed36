// A server on the software GPU with its real worker, programs run through it, and the bystander whose results must stay
// right whatever happens to others.
//
// Ownership: whoever starts a server or a program sees it ended. Threads: the test's. Errors: test failures.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/daemon/harness.h"

namespace gpupool::test {

// What a program may take that does not hang: under a sanitizer, on a machine that does much else.
constexpr milliseconds kTimeout(180000);

// A gpupoold with the real worker. `settings` as for Daemon.
std::string session_settings(const std::string& settings = "");

// A program with the client library in place, its output read from a file.
class Program {
  public:
    Program(const Daemon& daemon, const std::vector<std::string>& arguments,
            const std::vector<std::string>& environment = {});
    ~Program();
    Program(const Program&) = delete;

    [[nodiscard]] pid_t process() const { return process_; }
    [[nodiscard]] std::string output() const;
    [[nodiscard]] std::string errors() const;
    // Waits for a line that begins with `word` and gives the number behind it; -1 when there is none in time.
    [[nodiscard]] long long number(const std::string& word, milliseconds timeout = kTimeout) const;
    [[nodiscard]] bool says(const std::string& word, milliseconds timeout = kTimeout) const {
        return number(word, timeout) >= 0;
    }
    void signal(int number) const;
    void end_input();  // closes its stdin
    // The status as waitpid gives it; -1 when it is still there after `timeout`.
    int wait(milliseconds timeout = kTimeout);
    // True when it ended by itself with status 0 in time; a failure shows its output.
    [[nodiscard]] ::testing::AssertionResult succeeds(milliseconds timeout = kTimeout);

  private:
    TemporaryFolder folder_;
    pid_t process_ = -1;
    int input_ = -1;
    int status_ = -1;
};

// A program of gpupool_session_program.
std::vector<std::string> session_program(const std::string& mode);

// The session of that process, once it is listed.
cli::SessionStatus session_of(const Daemon& daemon, pid_t process);

// No session with that worker is listed, and its process is gone, within `timeout`.
bool is_gone(const Daemon& daemon, const cli::SessionStatus& session, milliseconds timeout = milliseconds(1000));

std::int64_t now_ms();

// A server, and a session beside the one that is tested: it checks its results without end.
class SessionTest : public ::testing::Test {
  protected:
    void SetUp() override;
    // The bystander's results were all right, a new session works, and nothing of other sessions is left.
    void TearDown() override;
    // What belongs to the bystander alone.
    [[nodiscard]] std::vector<cli::SessionStatus> others() const;

    std::unique_ptr<Daemon> daemon_;
    std::unique_ptr<Program> bystander_;
    std::string settings_;
    bool bystander_survives_ = true;
};

}  // namespace gpupool::test
