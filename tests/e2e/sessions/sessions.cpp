#include "tests/e2e/sessions/sessions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace gpupool::test {
namespace {

std::string content(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::vector<std::string> client_environment(const Daemon& daemon) {
    std::vector<std::string> environment = {
        std::string("LD_LIBRARY_PATH=") + GPUPOOL_CLIENT_FOLDER,
        "GPUPOOL_SERVER=" + daemon.address(),
        "GPUPOOL_TRANSPORT=" + std::string(daemon.address().starts_with("unix:") ? "shm" : "tcp"),
        "GPUPOOL_CONNECT_TIMEOUT=30s",
        std::string("SESSION_KERNELS=") + SESSION_KERNELS,
    };
    if (const std::string runtime = GPUPOOL_SANITIZER_RUNTIME; !runtime.empty()) {
        environment.push_back("LD_PRELOAD=" + runtime);
        // The session lives as long as the process, so what it still holds at exit is no leak.
        environment.push_back("ASAN_OPTIONS=detect_leaks=0");
    }
    return environment;
}

std::vector<std::string> inherited_environment() {
    std::vector<std::string> entries;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        if (!std::string(*entry).starts_with("GPUPOOL_")) {
            entries.emplace_back(*entry);
        }
    }
    return entries;
}

// `own`, and the entries of `others` whose names it lacks.
std::vector<std::string> merged(std::vector<std::string> own, const std::vector<std::string>& others) {
    for (const std::string& entry : others) {
        const auto name = entry.substr(0, entry.find('=') + 1);
        if (std::none_of(own.begin(), own.end(), [&](const std::string& mine) { return mine.starts_with(name); })) {
            own.push_back(entry);
        }
    }
    return own;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) {
        pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    return pointers;
}

}  // namespace

std::string session_settings(const std::string& settings) {
    return fmt::format("worker = \"{}\"\ndriver = \"{}\"\n{}", GPUPOOL_WORKER, GPUPOOL_SOFTWARE_GPU, settings);
}

Program::Program(const Daemon& daemon, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment) {
    // The first entry of a name counts, so the most specific settings are first.
    std::vector<std::string> entries = merged(merged(environment, client_environment(daemon)), inherited_environment());
    std::vector<std::string> words = arguments;
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    input_ = ends[1];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    const std::string out = folder_.path() + "/out", err = folder_.path() + "/err";
    ::posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int failure = ::posix_spawn(&process_, words[0].c_str(), &actions, nullptr, pointers_to(words).data(),
                                      pointers_to(entries).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[0]);
    EXPECT_EQ(failure, 0) << words[0] << ": " << std::strerror(failure);
}

Program::~Program() {
    end_input();
    if (process_ > 0 && status_ < 0) {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }
    for (const char* finding : {"Sanitizer", "runtime error:"}) {
        EXPECT_EQ(errors().find(finding), std::string::npos) << errors();
    }
}

std::string Program::output() const {
    return content(folder_.path() + "/out");
}

std::string Program::errors() const {
    return content(folder_.path() + "/err");
}

long long Program::number(const std::string& word, milliseconds timeout) const {
    long long found = -1;
    eventually(
        [&] {
            const bool over = !process_exists(process_);  // read before the output, so that no output is missed
            std::istringstream lines(output());
            for (std::string line; std::getline(lines, line);) {
                if (line.starts_with(word + " ")) {
                    found = std::atoll(line.c_str() + word.size());
                    return true;
                }
            }
            return over;
        },
        timeout);
    EXPECT_GE(found, 0) << "no \"" << word << "\" in:\n" << output() << errors();
    return found;
}

void Program::signal(int number) const {
    ::kill(process_, number);
}

void Program::end_input() {
    if (input_ >= 0) {
        ::close(input_);
        input_ = -1;
    }
}

bool Program::checks_again() {
    if (::write(input_, "c", 1) != 1) {
        return false;
    }
    return says("checked:" + std::to_string(++asked_));
}

bool Program::blocks() const {
    return eventually([&] { return is_blocked(process_, process_); });
}

int Program::wait(milliseconds timeout) {
    if (status_ < 0) {
        int status = 0;
        if (eventually([&] { return ::waitpid(process_, &status, WNOHANG) == process_; }, timeout)) {
            status_ = status;
        }
    }
    return status_;
}

::testing::AssertionResult Program::succeeds(milliseconds timeout) {
    const int status = wait(timeout);
    if (status == 0) {
        return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << (status < 0 ? "it is still running" : fmt::format("status {:#x}", status))
                                         << "; it said:\n"
                                         << output() << errors();
}

std::vector<std::string> session_program(const std::string& mode) {
    return {SESSION_PROGRAM, mode};
}

cli::SessionStatus session_of(const Daemon& daemon, pid_t process) {
    cli::SessionStatus found;
    const bool seen = eventually([&] {
        const auto now = daemon.status();
        if (!now) {
            return false;
        }
        const auto it = std::find_if(now->sessions.begin(), now->sessions.end(), [&](const auto& session) {
            return session.process_id == static_cast<std::uint32_t>(process);
        });
        if (it != now->sessions.end()) {
            found = *it;
        }
        return it != now->sessions.end();
    });
    EXPECT_TRUE(seen) << "no session of process " << process;
    return found;
}

bool is_gone(const Daemon& daemon, const cli::SessionStatus& session, milliseconds timeout) {
    return eventually(
        [&] {
            const auto now = daemon.status();
            return now &&
                   std::none_of(now->sessions.begin(), now->sessions.end(),
                                [&](const auto& other) { return other.id == session.id; }) &&
                   !process_exists(static_cast<pid_t>(session.worker_process_id));
        },
        timeout);
}

std::int64_t now_ms() {
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

// The server and the bystander that the last test has left to the next one.
struct LeftServer {
    std::string settings;
    std::unique_ptr<Daemon> daemon;
    std::unique_ptr<Program> bystander;
};
LeftServer left_server;

// A new session works, and when it has ended only `count` sessions are left.
void expect_left(const Daemon& daemon, std::size_t count) {
    Program visitor(daemon, {std::string(TEST_PROGRAMS) + "/vector_add"});
    EXPECT_TRUE(visitor.succeeds());
    daemon.sessions(count);
    EXPECT_TRUE(eventually([&] { return daemon.children() == count; }, milliseconds(2000)));
}

void end_server(std::unique_ptr<Daemon> daemon, std::unique_ptr<Program> bystander) {
    bystander->end_input();  // after which it checks more results
    EXPECT_TRUE(bystander->succeeds());
    EXPECT_GT(bystander->number("rounds", milliseconds(0)), 3);
    expect_left(*daemon, 0);
}

void end_left_server() {
    if (left_server.daemon != nullptr) {
        end_server(std::move(left_server.daemon), std::move(left_server.bystander));
    }
}

class EndLeftServer : public ::testing::Environment {
    void TearDown() override { end_left_server(); }
};
[[maybe_unused]] const auto* const kEndLeftServer = ::testing::AddGlobalTestEnvironment(new EndLeftServer);

}  // namespace

void SessionTest::SetUp() {
    if (shares_server_ && left_server.daemon != nullptr && left_server.settings == settings_) {
        daemon_ = std::move(left_server.daemon);
        bystander_ = std::move(left_server.bystander);
        log_begin_ = daemon_->log().size();
        return;
    }
    end_left_server();
    daemon_ = std::make_unique<Daemon>(session_settings(settings_));
    bystander_ = std::make_unique<Program>(*daemon_, session_program("steady"));
    ASSERT_TRUE(bystander_->says("ready"));
    // A worker may report its memory a moment after its program allocated it.
    ASSERT_TRUE(eventually([&] { return session_of(*daemon_, bystander_->process()).memory_used_bytes != 0; }));
}

void SessionTest::TearDown() {
    if (bystander_survives_ && !HasFatalFailure()) {
        if (!shares_server_ || HasFailure() || daemon_->restarted()) {
            end_server(std::move(daemon_), std::move(bystander_));
        } else {
            EXPECT_TRUE(bystander_->checks_again());
            expect_left(*daemon_, 1);
            left_server = {settings_, std::move(daemon_), std::move(bystander_)};
        }
    }
    bystander_.reset();
    daemon_.reset();
}

void SessionTest::expect_session_survives_stop(Program& program) {
    const auto session = session_of(*daemon_, program.process());
    program.signal(SIGSTOP);
    ASSERT_TRUE(eventually([&] { return state_of_thread(program.process(), program.process()).state == 'T'; }));
    // Meanwhile the server serves another program from its start to its end.
    Program visitor(*daemon_, {std::string(TEST_PROGRAMS) + "/vector_add"});
    EXPECT_TRUE(visitor.succeeds());
    EXPECT_EQ(session_of(*daemon_, program.process()).id, session.id);
    program.signal(SIGCONT);
    EXPECT_TRUE(program.checks_again());
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

std::vector<cli::SessionStatus> SessionTest::others() const {
    const auto status = daemon_->status();
    std::vector<cli::SessionStatus> found;
    if (status) {
        std::copy_if(status->sessions.begin(), status->sessions.end(), std::back_inserter(found),
                     [&](const auto& s) { return s.process_id != static_cast<std::uint32_t>(bystander_->process()); });
    }
    return found;
}

}  // namespace gpupool::test
