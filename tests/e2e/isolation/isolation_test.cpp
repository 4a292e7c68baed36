// What a worker that an attacker has taken over can do: each line of SECURITY.md has a test here. The attacker is
// taken_over.cpp, in the sandbox of a real worker. Each attempt is also made without the sandbox, where it succeeds: so
// it is the sandbox that refuses it.

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "protocol/transport/endpoint.h"
#include "server/isolation/sandbox.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

bool is_root() {
    return ::geteuid() == 0;
}

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// The value of a line "NAME: VALUE" of /proc/PROCESS/status.
std::string status_of(pid_t process, const std::string& name) {
    std::istringstream lines(content("/proc/" + std::to_string(process) + "/status"));
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(name + ":")) {
            const std::size_t begin = line.find_first_not_of(" \t", name.size() + 1);
            return begin == std::string::npos ? "" : line.substr(begin);
        }
    }
    return "none";
}

std::vector<std::string> command_line(pid_t process) {
    std::vector<std::string> words;
    std::istringstream text(content("/proc/" + std::to_string(process) + "/cmdline"));
    for (std::string word; std::getline(text, word, '\0');) {
        words.push_back(word);
    }
    return words;
}

// A server with a session of each of two tenants.
class Isolation : public ::testing::Test {
  protected:
    void start(const std::string& settings = "") {
        daemon_ = std::make_unique<Daemon>(session_settings("state_directory = \"" + state_.path() + "\"\n" + settings +
                                                            "[images]\ndirectory = \"" + images() + "\"\n"));
        alice_ = hold(add("alice"));
        bob_ = hold(add("bob"));
    }
    [[nodiscard]] std::string images() const { return state_.path() + "/images"; }
    std::string add(const std::string& tenant) const {
        std::string token =
            run_program({GPUPOOL_COMMAND, "tenant", "add", tenant, "--server", daemon_->address()}).output;
        token.erase(token.find_last_not_of('\n') + 1);
        return token;
    }
    std::unique_ptr<Program> hold(const std::string& token) const {
        auto program =
            std::make_unique<Program>(*daemon_, session_program("quota_hold"),
                                      std::vector<std::string>{"GPUPOOL_TOKEN=" + token, "QUOTA=0", "HELD=1048576"});
        EXPECT_TRUE(program->says("ready")) << program->errors();
        return program;
    }
    pid_t worker_of(const Program& program) const {
        return static_cast<pid_t>(session_of(*daemon_, program.process()).worker_process_id);
    }

    // The output of a program in the place of a worker of `alice`, in that worker's sandbox or without it.
    std::string attempt(const std::string& name, const std::string& argument, bool in_sandbox) const {
        std::vector<std::string> words{TAKEN_OVER, name, argument};
        const auto worker = command_line(worker_of(*alice_));
        const auto sandbox = std::find(worker.begin(), worker.end(), isolation::kSandboxOption);
        EXPECT_NE(sandbox, worker.end());
        if (in_sandbox) {
            words.insert(words.end(), sandbox, worker.end());
            // Another worker's user: alice's own worker must be out of its reach as well.
            for (std::string& word : words) {
                word = word.starts_with("user=") ? "user=2000011111" : word;
            }
        }
        const ProcessEnd end = run_program(words, {"OWN_FOLDER=" + images() + "/alice"});
        EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0) << name << ": " << end.errors;
        return end.output;
    }
    void expect_refused(const std::string& name, const std::string& argument = "") const {
        EXPECT_EQ(attempt(name, argument, false), "succeeded\n") << name << " " << argument << ", without a sandbox";
        const std::string result = attempt(name, argument, true);
        EXPECT_TRUE(result.starts_with("refused: ")) << name << " " << argument << ": " << result;
    }
    void expect_allowed(const std::string& name, const std::string& argument = "") const {
        EXPECT_EQ(attempt(name, argument, true), "succeeded\n") << name << " " << argument;
    }

    TemporaryFolder state_;
    std::unique_ptr<Daemon> daemon_;
    std::unique_ptr<Program> alice_, bob_;
};

TEST_F(Isolation, WorkersHaveNoRightsAndUsersOfTheirOwn) {
    start("[stock]\nworkers = 1\n");
    const pid_t alices = worker_of(*alice_), bobs = worker_of(*bob_);
    for (const pid_t worker : {alices, bobs}) {
        EXPECT_EQ(status_of(worker, "NoNewPrivs"), "1");
        EXPECT_EQ(status_of(worker, "Seccomp"), "2");
        EXPECT_NE(content("/proc/" + std::to_string(worker) + "/limits").find("Max core file size        0 "),
                  std::string::npos);
        if (is_root()) {
            EXPECT_EQ(status_of(worker, "CapEff"), "0000000000000000");
            EXPECT_EQ(status_of(worker, "CapPrm"), "0000000000000000");
            EXPECT_EQ(status_of(worker, "Groups"), "");
        }
    }
    if (is_root()) {
        EXPECT_NE(status_of(alices, "Uid"), status_of(bobs, "Uid"));
        EXPECT_TRUE(status_of(alices, "Uid").starts_with("20000")) << status_of(alices, "Uid");
        EXPECT_TRUE(status_of(alices, "Gid").starts_with("20000")) << status_of(alices, "Gid");
    }
}

TEST_F(Isolation, NoNameOfATenantOrAClientCanBeReadFromAWorker) {
    start();
    for (const auto& [worker, secret] : {std::pair{worker_of(*bob_), "bob"}, {worker_of(*alice_), "alice"}}) {
        for (const std::string& word : command_line(worker)) {
            EXPECT_EQ(word.find(secret), std::string::npos) << word;
        }
        for (const char* file : {"comm", "status", "stat", "cgroup"}) {
            EXPECT_EQ(content("/proc/" + std::to_string(worker) + "/" + file).find(secret), std::string::npos) << file;
        }
    }
}

TEST_F(Isolation, NoSignalReachesAnotherProcess) {
    start();
    const auto processes = {worker_of(*bob_), worker_of(*alice_), daemon_->process(), ::getpid()};
    for (const pid_t process : processes) {
        expect_refused("signal", std::to_string(process));
    }
    EXPECT_TRUE(attempt("signal-all", "", true).starts_with("refused: "));
}

TEST_F(Isolation, NoProcessIsTracedOrRead) {
    start();
    for (const pid_t process : {worker_of(*bob_), worker_of(*alice_)}) {
        const std::string folder = "/proc/" + std::to_string(process);
        expect_refused("trace", std::to_string(process));
        expect_refused("read-memory", std::to_string(process));
        expect_refused("take-descriptor", std::to_string(process));
        for (const char* file : {"/environ", "/maps", "/auxv"}) {
            expect_refused("read", folder + file);
        }
        expect_refused("list", folder + "/fd");
        if (isolation::landlock_version() > 0) {
            expect_refused("read", folder + "/cmdline");
            expect_refused("read", folder + "/status");
        }
    }
    if (isolation::landlock_version() > 0) {
        expect_refused("list", "/proc");
    }
}

TEST_F(Isolation, NoFileOfTheServerOrAnotherTenantIsRead) {
    start();
    if (!is_root()) {
        GTEST_SKIP() << "without root the workers are the server's user, which owns these files";
    }
    ASSERT_TRUE(eventually([&] { return ::access((images() + "/bob").c_str(), F_OK) == 0; }));
    expect_refused("list", images());
    expect_refused("list", images() + "/bob");
    expect_refused("open-from-folder", "..");
    expect_refused("open-from-folder", "../bob");
    expect_refused("read", state_.path() + "/gpupool.db");
    expect_refused("read", daemon_->folder().path() + "/gpupoold.toml");
    expect_refused("read", daemon_->folder().path() + "/log");
    expect_allowed("create-in-folder", "probe");  // of its own tenant
}

TEST_F(Isolation, NoFileIsWrittenElsewhere) {
    start();
    const TemporaryFolder folder;
    ASSERT_EQ(::chmod(folder.path().c_str(), is_root() ? 0755 : 0700), 0);
    if (is_root()) {
        expect_refused("create", folder.path() + "/file");
        expect_refused("create", "/etc/gpupool-test-file");
        ::unlink("/etc/gpupool-test-file");
    }
    if (isolation::landlock_version() > 0) {
        ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
        expect_refused("create", folder.path() + "/other");
        expect_refused("read", folder.write("readable", "text"));
    }
}

TEST_F(Isolation, NoDeviceButItsOwnIsOpened) {
    start();
    if (isolation::landlock_version() == 0) {
        GTEST_SKIP() << "this kernel has no Landlock";
    }
    expect_refused("use", "/dev/full");  // stands for any device node that all users may open
    expect_allowed("use", "/dev/null");
}

TEST_F(Isolation, NoProgramIsRun) {
    start();
    expect_refused("run-program");
    expect_refused("fork");
    expect_allowed("start-thread");
}

TEST_F(Isolation, NoRightIsGained) {
    start();
    if (is_root()) {
        const TemporaryFolder folder;
        expect_refused("become-root");
        expect_refused("make-node", folder.path() + "/node");
    }
    EXPECT_TRUE(attempt("mount", state_.path(), true).starts_with("refused: "));
    EXPECT_TRUE(attempt("new-user-space", "", true).starts_with("refused: "));
    EXPECT_TRUE(attempt("dump-core", "", true).starts_with("refused: "));
}

TEST_F(Isolation, NoCallOfTheKernelThatADriverDoesNotNeedIsMade) {
    start();
    for (const int number : {SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_keyctl, SYS_add_key, SYS_init_module,
                             SYS_kexec_load, SYS_ptrace, SYS_setns, 425 /* io_uring_setup */}) {
        const std::string result = attempt("call", std::to_string(number), true);
        EXPECT_TRUE(result.starts_with("refused: ")) << number << ": " << result;
    }
    EXPECT_EQ(attempt("call", std::to_string(SYS_keyctl), false), "succeeded\n") << "without a sandbox";
}

TEST_F(Isolation, NoNetworkIsReached) {
    start();
    const auto address = transport::Endpoint::parse(daemon_->address());
    ASSERT_TRUE(address);
    expect_refused("connect", std::to_string(address->port));
}

TEST_F(Isolation, NoSocketOfTheServerIsReached) {
    start();
    const auto address = transport::Endpoint::parse(daemon_->address());
    ASSERT_TRUE(address);
    if (is_root()) {
        expect_refused("connect-local",
                       daemon_->folder().path() + "/run/" + std::to_string(address->port) + "/supervision.sock");
    }
    if (isolation::landlock_version() >= 6) {
        const std::string name = "@gpupool-isolation-test-" + std::to_string(::getpid());
        const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un own{};
        own.sun_family = AF_UNIX;
        name.copy(own.sun_path, sizeof own.sun_path);
        own.sun_path[0] = '\0';
        const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&own), bytes), 0);
        ASSERT_EQ(::listen(listener.get(), 5), 0);
        expect_refused("connect-local", name);
    }
}

TEST_F(Isolation, LogModeNamesWhatWouldBeRefused) {
    start("[isolation]\nseccomp = \"log\"\n");
    const ProcessEnd end = [&] {
        auto words = command_line(worker_of(*alice_));
        words.erase(words.begin(), std::find(words.begin(), words.end(), isolation::kSandboxOption));
        words.insert(words.begin(), {TAKEN_OVER, "call", std::to_string(SYS_keyctl)});
        return run_program(words);
    }();
    EXPECT_EQ(end.output, "succeeded\n") << end.errors;
    EXPECT_NE(end.errors.find("would refuse the system call keyctl"), std::string::npos) << end.errors;
    EXPECT_EQ(daemon_->log().find("would refuse"), std::string::npos) << "a session needs nothing that is refused";
}

// Of each session, also of one whose worker was prepared in advance.
TEST(LeftOvers, DeviceMemoryOfAnEndedSessionIsNotFound) {
    for (const auto& [stock, transport] : {std::pair{"0", "tcp"}, {"1", "shm"}}) {
        Daemon daemon(session_settings(std::string("[stock]\nworkers = ") + stock + "\n"),
                      {"GPUPOOL_SOFTGPU_MEMORY=64M"});
        const std::vector<std::string> environment{std::string("GPUPOOL_TRANSPORT=") + transport};
        Program first(daemon, session_program("leave_secret"), environment);
        EXPECT_TRUE(first.succeeds());
        Program second(daemon, session_program("find_secret"), environment);
        EXPECT_TRUE(second.succeeds());
    }
}

}  // namespace
}  // namespace gpupool::test
