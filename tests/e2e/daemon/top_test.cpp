// `gpupool top` in a pseudo terminal, with a real daemon: what the screen shows, keys, sizes, and a server that goes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "tests/e2e/daemon/harness.h"
#include "tests/support/terminal_screen.h"

namespace gpupool::test {
namespace {

class TopInTerminal {
  public:
    TopInTerminal(const std::string& address, const std::string& terminal, const std::string& locale,
                  unsigned short rows = 30, unsigned short columns = 150)
        : screen_(rows, columns) {
        const winsize size{rows, columns, 0, 0};
        int descriptor = -1;
        // Prepared before the fork, after which the child only starts the program.
        const std::vector<std::string> environment{"TERM=" + terminal, "LC_ALL=" + locale, "HOME=/nonexistent",
                                                   "ASAN_OPTIONS=detect_leaks=0"};
        const std::vector<std::string> arguments{GPUPOOL_COMMAND, "top", "--server", address, "--interval", "0.1"};
        std::vector<char*> environment_pointers = pointers(environment), argument_pointers = pointers(arguments);
        process_ = ::forkpty(&descriptor, nullptr, nullptr, &size);
        if (process_ == 0) {
            ::execve(GPUPOOL_COMMAND, argument_pointers.data(), environment_pointers.data());
            ::_exit(127);
        }
        descriptor_.reset(descriptor);
    }
    ~TopInTerminal() {
        if (status_ < 0) {
            ::kill(process_, SIGKILL);
            ::waitpid(process_, nullptr, 0);
        }
    }
    TopInTerminal(const TopInTerminal&) = delete;

    // Reads until the screen shows the text, or until it does not.
    testing::AssertionResult shows(const std::string& text, bool wanted = true) {
        const auto deadline = std::chrono::steady_clock::now() + kLongWait;
        while (screen_.shows(text) != wanted) {
            if (std::chrono::steady_clock::now() > deadline || !read()) {
                return testing::AssertionFailure()
                       << (wanted ? "not on the screen: " : "on the screen: ") << text << "\n"
                       << screen_.text();
            }
        }
        return testing::AssertionSuccess();
    }
    void press(const std::string& keys) {
        EXPECT_EQ(::write(descriptor_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    }
    void resize(unsigned short rows, unsigned short columns) {
        const winsize size{rows, columns, 0, 0};
        screen_.resize(rows, columns);
        EXPECT_EQ(::ioctl(descriptor_.get(), TIOCSWINSZ, &size), 0);
    }
    // The exit code.
    int wait() {
        while (read()) {
        }
        ::waitpid(process_, &status_, 0);
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
    }
    [[nodiscard]] std::string text() const { return screen_.text(); }
    [[nodiscard]] const std::string& written() const { return written_; }

  private:
    static std::vector<char*> pointers(const std::vector<std::string>& texts) {
        std::vector<char*> all;
        for (const std::string& text : texts) {
            all.push_back(const_cast<char*>(text.c_str()));
        }
        all.push_back(nullptr);
        return all;
    }
    // False once the program has ended, or has written nothing for long.
    bool read() {
        pollfd entry{descriptor_.get(), POLLIN, 0};
        if (::poll(&entry, 1, static_cast<int>(milliseconds(kLongWait).count())) <= 0) {
            return false;
        }
        char buffer[4096];
        const auto got = ::read(descriptor_.get(), buffer, sizeof(buffer));
        if (got <= 0) {
            return false;
        }
        written_.append(buffer, static_cast<std::size_t>(got));
        screen_.write({buffer, static_cast<std::size_t>(got)});
        return true;
    }

    TerminalScreen screen_;
    std::string written_;
    UniqueFd descriptor_;
    pid_t process_ = -1;
    int status_ = -1;
};

class Top : public testing::TestWithParam<const char*> {};

TEST_P(Top, ShowsTheServerAndObeysKeys) {
    Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.process_name = "trainer"});
    const std::string id = client.welcome();
    daemon.sessions(1);
    TopInTerminal top(daemon.address(), GetParam(), "C.UTF-8");
    EXPECT_TRUE(top.shows(id.substr(0, 9)));
    EXPECT_TRUE(top.shows("GPU 0"));
    EXPECT_TRUE(top.shows("100 MiB / 4 GiB"));
    EXPECT_TRUE(top.shows("trainer"));
    EXPECT_TRUE(top.shows("sessions 1  sort memory  tenant all"));
    EXPECT_TRUE(top.shows("███")) << "its history";
    top.press("s");
    EXPECT_TRUE(top.shows("sort copied"));
    top.press("r");
    EXPECT_TRUE(top.shows("(reversed)"));
    top.press("t");
    EXPECT_TRUE(top.shows("tenant anonymous"));
    top.resize(6, 40);
    EXPECT_TRUE(top.shows("gpupool"));
    EXPECT_TRUE(top.shows(id.substr(0, 9)));
    top.resize(1, 1);
    EXPECT_TRUE(top.shows("g"));
    top.resize(30, 150);
    EXPECT_TRUE(top.shows("trainer"));
    client.leave();
    EXPECT_TRUE(top.shows("trainer", false));
    top.press("q");
    EXPECT_EQ(top.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Terminals, Top, testing::Values("xterm", "vt100"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(TopCommand, WaitsForAServerThatDies) {
    Daemon daemon;
    TopInTerminal top(daemon.address(), "xterm", "C");
    EXPECT_TRUE(top.shows("GPU 0"));
    daemon.kill_hard();
    EXPECT_TRUE(top.shows("No answer for"));
    EXPECT_TRUE(top.shows("no server reachable at " + daemon.address()));
    EXPECT_TRUE(top.shows("GPU 0")) << "what was known stays";
    daemon.start();
    EXPECT_TRUE(top.shows("No answer for", false));
    top.press("q");
    EXPECT_EQ(top.wait(), 0);
}

TEST(TopCommand, ExplainsWhatIsMissing) {
    Daemon daemon;
    const auto without = run_program({GPUPOOL_COMMAND, "top", "--server", daemon.address()});
    EXPECT_EQ(WEXITSTATUS(without.status), 1);
    EXPECT_NE(without.errors.find("gpupool top needs a terminal"), std::string::npos) << without.errors;
    TopInTerminal unknown(daemon.address(), "no-such-terminal", "C");
    EXPECT_EQ(unknown.wait(), 1);
    EXPECT_NE(unknown.written().find("does not know the terminal 'no-such-terminal'"), std::string::npos)
        << unknown.written();
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_end(milliseconds(20000)), 0);
    TopInTerminal alone(daemon.address(), "xterm", "C");
    EXPECT_EQ(alone.wait(), 1);
    EXPECT_NE(alone.written().find("no server reachable"), std::string::npos) << alone.written();
    EXPECT_EQ(WEXITSTATUS(run_program({GPUPOOL_COMMAND, "top", "--sort", "colour"}).status), 2);
}

}  // namespace
}  // namespace gpupool::test
