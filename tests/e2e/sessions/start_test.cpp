// What makes sessions start sooner: code images kept from earlier sessions, and workers in stock.

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "tests/e2e/sessions/proxy.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> vector_add() {
    return {std::string(TEST_PROGRAMS) + "/vector_add"};
}

struct Traffic {
    long long sent = -1, sent_bytes = -1, wire_bytes = -1, found = -1, registered_bytes = -1;
};

// The figures about code images from a program's summary.
Traffic read_summary(const std::string& path) {
    Traffic traffic;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const auto read = [&](const char* what, long long& count, long long& bytes) {
            if (line.starts_with(what)) {
                std::istringstream(line.substr(std::string(what).size())) >> count >> bytes;
            }
        };
        long long ignored = 0;
        read("code images: sent", traffic.sent, traffic.sent_bytes);
        read("code images: parts on the wire", ignored, traffic.wire_bytes);
        read("code images: found on the server", traffic.found, ignored);
        read("code images: registered by the program", ignored, traffic.registered_bytes);
    }
    return traffic;
}

// Runs vector_add to its end.
Traffic run(const Daemon& daemon, const std::string& token = "") {
    const TemporaryFolder folder;
    const std::string summary = folder.path() + "/summary";
    Program program(daemon, vector_add(), {"GPUPOOL_SUMMARY=" + summary, "GPUPOOL_TOKEN=" + token});
    EXPECT_TRUE(program.succeeds());
    EXPECT_EQ(program.errors(), "");
    // The images are kept after the worker has ended.
    EXPECT_TRUE(eventually([&] {
        const auto status = daemon.status(token);
        return status && status->sessions.empty();
    }));
    return read_summary(summary);
}

class KeptCode : public ::testing::Test {
  protected:
    void start(const std::string& settings = "") { daemon_ = std::make_unique<Daemon>(session_settings(settings)); }
    // Where the daemon keeps code images by default.
    [[nodiscard]] std::string root() const { return daemon_->folder().path() + "/cache/gpupool/images"; }
    [[nodiscard]] std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        std::error_code none;
        for (const auto& entry : fs::recursive_directory_iterator(root(), none)) {
            if (entry.is_regular_file() && entry.path().filename().string().size() == 64) {
                found.push_back(entry.path());
            }
        }
        return found;
    }

    std::unique_ptr<Daemon> daemon_;
};

TEST_F(KeptCode, SecondSessionSendsNoImages) {
    start();
    const Traffic first = run(*daemon_);
    EXPECT_EQ(first.sent, 1);
    EXPECT_GT(first.sent_bytes, 0);
    EXPECT_LT(first.sent_bytes, first.registered_bytes) << "only one image of the fat binary is sent";
    EXPECT_EQ(first.found, 0);
    const Traffic second = run(*daemon_);
    EXPECT_EQ(second.sent, 0);
    EXPECT_EQ(second.found, 1);
    ASSERT_EQ(files().size(), 1u);
    struct stat facts {};
    ASSERT_EQ(::stat(root().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
}

TEST_F(KeptCode, ConcurrentSessionsDoNotInterfere) {
    start();
    std::vector<std::unique_ptr<Program>> programs;
    for (int i = 0; i < 6; ++i) {
        programs.push_back(std::make_unique<Program>(*daemon_, vector_add()));
    }
    for (const auto& program : programs) {
        EXPECT_TRUE(program->succeeds());
    }
    EXPECT_EQ(run(*daemon_).sent, 0);
    EXPECT_EQ(files().size(), 1u);
}

TEST_F(KeptCode, DamagedFileIsDetectedAndReplaced) {
    start();
    run(*daemon_);
    ASSERT_EQ(files().size(), 1u);
    const fs::path file = files().front();
    {
        std::fstream damage(file, std::ios::in | std::ios::out);
        damage.seekp(200);
        damage.put('\x7f');
    }
    EXPECT_EQ(run(*daemon_).sent, 1) << "the damaged image must be sent again";
    EXPECT_NE(daemon_->log().find("is damaged"), std::string::npos);
    EXPECT_EQ(run(*daemon_).sent, 0) << "the stored image must be whole again";
}

TEST_F(KeptCode, IsSeparateForEachTenant) {
    start("[auth]\ntokens = [\"token-of-one\", \"token-of-two\"]\n");
    EXPECT_EQ(run(*daemon_, "token-of-one").sent, 1);
    EXPECT_EQ(run(*daemon_, "token-of-two").sent, 1);
    EXPECT_EQ(run(*daemon_, "token-of-one").sent, 0);
    EXPECT_EQ(run(*daemon_, "token-of-two").sent, 0);
    const auto kept = files();
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_EQ(kept[0].filename(), kept[1].filename());
    EXPECT_EQ(kept[0].string().find("token"), std::string::npos) << kept[0];
}

TEST_F(KeptCode, ImagesAboveTheLimitAreNotKept) {
    start("[images]\nlimit = 100\n");
    EXPECT_EQ(run(*daemon_).sent, 1);
    EXPECT_EQ(run(*daemon_).sent, 1);
    EXPECT_EQ(files().size(), 0u);
}

TEST_F(KeptCode, CanBeTurnedOff) {
    start("[images]\ndirectory = \"off\"\n");
    EXPECT_EQ(run(*daemon_).sent, 1);
    EXPECT_EQ(run(*daemon_).sent, 1);
    EXPECT_FALSE(fs::exists(root()));
}

TEST_F(KeptCode, SessionsWorkWithoutAStore) {
    start("[images]\ndirectory = \"/proc/gpupool/images\"\n");
    EXPECT_EQ(run(*daemon_).sent, 1);
    EXPECT_EQ(run(*daemon_).sent, 1);
    const std::string log = daemon_->log();
    const auto warning = log.find("code images are not kept");
    ASSERT_NE(warning, std::string::npos) << log;
    EXPECT_EQ(log.find("code images are not kept", warning + 1), std::string::npos) << "the warning must appear once";
}

TEST_F(KeptCode, ImagesAreCompressedOnASlowNetwork) {
    start("[images]\ndirectory = \"off\"\n");
    const TemporaryFolder folder;
    std::stringstream kernels;
    kernels << "//" << std::string(40u << 20, ' ') << '\n' << std::ifstream(SESSION_KERNELS).rdbuf();
    const std::string large = folder.write("large.ptx", kernels.str());
    const auto traffic_over = [&](const std::string& server) {
        const std::string summary = folder.path() + "/summary-" + server;
        Program program(*daemon_, session_program("steady"),
                        {"GPUPOOL_SERVER=" + server, "SESSION_KERNELS=" + large, "GPUPOOL_SUMMARY=" + summary});
        EXPECT_TRUE(program.says("ready"));
        program.end_input();
        EXPECT_TRUE(program.succeeds());
        return read_summary(summary);
    };
    transport::faulty::Faults slow;
    slow.throttle_bytes_per_second = 4u << 20;
    FaultyProxy proxy(daemon_->address(), slow, {});
    const Traffic over_slow = traffic_over(proxy.address());
    EXPECT_GT(over_slow.sent_bytes, 40 << 20);
    EXPECT_LT(over_slow.wire_bytes, over_slow.sent_bytes * 3 / 4);
}

class Stock : public ::testing::Test {
  protected:
    void start(const std::string& settings = "[stock]\nworkers = 1\n", std::vector<std::string> environment = {}) {
        daemon_ = std::make_unique<Daemon>(session_settings(settings), std::move(environment));
    }
    [[nodiscard]] bool is_ready(std::uint32_t count = 1) const {
        return eventually(
            [&] {
                const auto status = daemon_->status();
                return status && status->stock_ready == count;
            },
            milliseconds(20000));
    }
    // The process of the worker in stock, while there is no session.
    [[nodiscard]] pid_t waiting() const {
        std::ifstream file("/proc/" + std::to_string(daemon_->process()) + "/task/" +
                           std::to_string(daemon_->process()) + "/children");
        pid_t child = -1;
        file >> child;
        return child;
    }

    std::unique_ptr<Daemon> daemon_;
};

TEST_F(Stock, IsNotListedAsASession) {
    start();
    ASSERT_TRUE(is_ready());
    const auto status = daemon_->status();
    EXPECT_EQ(status->sessions.size(), 0u);
    EXPECT_EQ(status->stock_wanted, 1u);
    EXPECT_EQ(daemon_->children(), 1u);
}

TEST_F(Stock, TakenWorkerIsReplaced) {
    start();
    ASSERT_TRUE(is_ready());
    const pid_t prepared = waiting();
    Program program(*daemon_, session_program("steady"));
    ASSERT_TRUE(program.says("ready"));
    const auto session = session_of(*daemon_, program.process());
    EXPECT_EQ(static_cast<pid_t>(session.worker_process_id), prepared);
    EXPECT_EQ(session.state, "running");
    EXPECT_TRUE(is_ready()) << "another worker must take its place";
    EXPECT_EQ(daemon_->sessions(1).size(), 1u);
    program.end_input();
    EXPECT_TRUE(program.succeeds());
    EXPECT_TRUE(is_gone(*daemon_, session));
    EXPECT_TRUE(is_ready());
}

TEST_F(Stock, TakesNoSessionsPlace) {
    start("[stock]\nworkers = 2\n[limits]\nsessions = 1\n");
    ASSERT_TRUE(is_ready(2));
    for (int i = 0; i < 3; ++i) {
        Program program(*daemon_, vector_add());
        EXPECT_TRUE(program.succeeds());
        daemon_->sessions(0);
    }
}

TEST_F(Stock, OtherEnvironmentGetsANewWorker) {
    start("[stock]\nworkers = 1\n", {"GPUPOOL_SOFTGPU_DEVICES=4"});
    ASSERT_TRUE(is_ready());
    const pid_t prepared = waiting();
    const auto devices = [&](const std::string& visible) {
        Program program(*daemon_, {std::string(TEST_PROGRAMS) + "/device_query"}, {"CUDA_VISIBLE_DEVICES=" + visible});
        EXPECT_TRUE(program.succeeds());
        const std::string output = program.output();
        std::size_t count = 0;
        for (std::size_t at = 0; (at = output.find("PCI bus id", at)) != std::string::npos; ++at) {
            ++count;
        }
        return count;
    };
    EXPECT_EQ(devices("2,1"), 2u);
    EXPECT_EQ(daemon_->log().find("of the stock\n"), std::string::npos) << "the worker in stock sees four devices";
    // The next one is prepared for the environment of the last session.
    EXPECT_TRUE(eventually([&] { return !process_exists(prepared); }, milliseconds(20000)));
    ASSERT_TRUE(is_ready());
    EXPECT_EQ(devices("2,1"), 2u);
    EXPECT_NE(daemon_->log().find("of the stock\n"), std::string::npos);
    EXPECT_EQ(devices("3"), 1u);
}

TEST_F(Stock, DefaultEnvironmentMatchesPyTorchs) {
    start();
    ASSERT_TRUE(is_ready());
    Program program(*daemon_, vector_add(), {"CUDA_MODULE_LOADING=LAZY"});
    EXPECT_TRUE(program.succeeds());
    EXPECT_NE(daemon_->log().find("of the stock\n"), std::string::npos);
}

TEST_F(Stock, KilledWorkerIsReplaced) {
    start();
    ASSERT_TRUE(is_ready());
    const pid_t prepared = waiting();
    ::kill(prepared, SIGKILL);
    // A client that connects before the death is detected gets a worker started for it.
    Program program(*daemon_, vector_add());
    EXPECT_TRUE(program.succeeds());
    EXPECT_TRUE(is_ready());
    EXPECT_NE(waiting(), prepared);
}

TEST_F(Stock, EndsWithItsDaemon) {
    for (const int signal : {SIGTERM, SIGKILL, SIGUSR1}) {
        start("[stock]\nworkers = 3\n");
        ASSERT_TRUE(is_ready(3));
        const pid_t prepared = waiting();
        daemon_->signal(signal);
        ASSERT_TRUE(daemon_->wait_for_end(milliseconds(5000))) << signal;
        EXPECT_TRUE(eventually([&] { return !process_exists(prepared); }, milliseconds(2000))) << signal;
    }
}

TEST_F(Stock, TakenWorkerSurvivesItsDaemon) {
    start();
    ASSERT_TRUE(is_ready());
    const pid_t prepared = waiting();
    Program program(*daemon_, session_program("steady"));
    ASSERT_TRUE(program.says("ready"));
    daemon_->kill_hard();
    daemon_->start();
    EXPECT_EQ(static_cast<pid_t>(session_of(*daemon_, program.process()).worker_process_id), prepared);
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

TEST_F(Stock, MayHoldContexts) {
    start("[stock]\nworkers = 1\ncontexts = true\n");
    ASSERT_TRUE(is_ready());
    EXPECT_TRUE(daemon_->status()->stock_contexts);
    // It creates and destroys contexts, the primary one too, and checks what is left of them.
    Program program(*daemon_, {std::string(GPU_PROGRAMS) + "/contexts"});
    EXPECT_TRUE(program.succeeds());
    EXPECT_NE(daemon_->log().find("of the stock\n"), std::string::npos);
}

TEST_F(Stock, FailingDriverIsNotRetriedEndlessly) {
    start("[stock]\nworkers = 1\n", {"GPUPOOL_SOFTGPU_DEVICES=2"});
    ASSERT_TRUE(is_ready());
    Program program(*daemon_, vector_add(), {"CUDA_VISIBLE_DEVICES=7"});
    EXPECT_NE(program.wait(), 0);
    EXPECT_TRUE(eventually([&] { return daemon_->log().find("cannot be prepared") != std::string::npos; },
                           milliseconds(20000)));
    EXPECT_TRUE(is_ready()) << "workers for other environments must still start";
    std::size_t failures = 0;
    const std::string log = daemon_->log();
    for (std::size_t at = 0; (at = log.find("cannot be prepared", at)) != std::string::npos; ++at) {
        ++failures;
    }
    EXPECT_LE(failures, 2u) << log;
}

}  // namespace
}  // namespace gpupool::test
