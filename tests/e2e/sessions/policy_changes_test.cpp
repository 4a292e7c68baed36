// Changes of the policy at random moments under load: no session is lost, and none is refused that fits.

#include <signal.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "client/cli/administration.h"
#include "tests/e2e/sessions/tenants.h"

namespace gpupool::test {
namespace {

constexpr int kChanges = 1000;
constexpr std::size_t kLoad = 3;  // programs at a time

class PolicyChanges : public TenantsTest {
  protected:
    // A change that leaves room for the load: 8 MiB of one GPU, and about 20 driver objects.
    [[nodiscard]] messages::ChangeLimits random_change() {
        static const std::vector<std::pair<std::string, std::vector<std::string>>> kValues{
            {"memory", {"16MiB", "32MiB", "64MiB", "0=16MiB,1=32MiB"}},
            {"default_memory", {"8MiB", "16MiB"}},
            {"default_gpus", {"1", "2"}},
            {"gpus", {"2", "none"}},
            {"priority", {"0", "50", "100"}},
            {"sessions", {"3", "10", "none"}},
            {"total_gpus", {"6", "none"}},
            {"total_memory", {"400MiB", "none"}},
            {"class", {"shared", "exclusive"}},
            {"copy_bandwidth", {"8MiB/s", "none"}},
            {"pinned_memory", {"1MiB", "none"}},
            {"handles", {"500", "none"}},
            {"idle_time", {"60s", "none"}},
            {"life_time", {"1h", "none"}},
        };
        const auto& [key, values] = kValues[pick(kValues.size())];
        messages::ChangeLimits change;
        static const std::vector<messages::LimitScope> kScopes{
            {messages::LimitScope::Kind::everyone, ""},
            {messages::LimitScope::Kind::tenant, "alice"},
            {messages::LimitScope::Kind::tenant, "bob"},
        };
        change.scope = kScopes[pick(kScopes.size())];
        if (pick(4) == 0) {
            change.unset = {key};
        } else {
            change.set = {{key, values[pick(values.size())], ""}};
        }
        return change;
    }
    std::size_t pick(std::size_t count) { return random_() % count; }

    std::minstd_rand random_{7};
};

TEST_F(PolicyChanges, LoseNothingAndRefuseNothingThatFits) {
    start("[tenants]\nmemory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_DEVICES=2", "GPUPOOL_SOFTGPU_MEMORY=256M"});
    const std::vector<std::string> tokens{add("alice"), add("bob")};
    std::atomic<bool> over{false};
    std::atomic<int> ended{0};
    std::vector<std::thread> load;
    for (std::size_t i = 0; i < kLoad; ++i) {
        load.emplace_back([&, i] {
            while (!over) {
                const auto program = run(tokens[i % 2], "limit_check", 0, {"GPUPOOL_WAIT_WHEN_FULL=120s"});
                EXPECT_TRUE(program->succeeds()) << program->output();
                ++ended;
            }
        });
    }
    const std::string path = daemon_->folder().path() + "/gpupoold.toml";
    std::string text;
    {
        std::ifstream in(path);
        text.assign(std::istreambuf_iterator<char>(in), {});
    }
    for (int i = 0; i < kChanges; ++i) {
        if (i % 20 == 0) {
            std::ofstream(path) << text << "\n[placement]\npolicy = \"" << (pick(2) == 0 ? "pack" : "spread") << "\"\n";
            daemon_->signal(SIGHUP);
        }
        messages::ChangeLimits change = random_change();
        if (pick(4) == 0) {
            if (const auto shown = cli::ask_status(daemon_->address(), "", kTimeout);
                shown && !shown->sessions.empty()) {
                change.scope = {messages::LimitScope::Kind::session, shown->sessions[pick(shown->sessions.size())].id};
                change.set = {{"memory", pick(2) == 0 ? "16MiB" : "48MiB", ""}};
                change.unset.clear();
            }
        }
        const auto answer = cli::administer(daemon_->address(), "", change, kTimeout);
        if (change.scope.kind != messages::LimitScope::Kind::session) {  // else it may have ended meanwhile
            EXPECT_TRUE(answer) << answer.error().message;
        }
    }
    over = true;
    for (std::thread& thread : load) {
        thread.join();
    }
    EXPECT_GT(ended, static_cast<int>(kLoad));
    EXPECT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    const auto idle = status();
    EXPECT_TRUE(idle["queue"].empty());
    for (const auto& device : idle["devices"]) {
        EXPECT_EQ(device["memory_promised_bytes"], 0u) << "what was promised is given back";
    }
    std::ifstream log(state_.path() + "/audit.log");
    for (std::string line; std::getline(log, line);) {
        EXPECT_EQ(line.find("\"refused\""), std::string::npos) << line;
    }
}

}  // namespace
}  // namespace gpupool::test
