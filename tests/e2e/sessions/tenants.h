// A server with tenants, the commands that an administrator types, and programs of tenants. The commands run as the
// server's own user, which needs no token.
//
// Ownership: the fixture owns the server. Threads: the test's. Errors: test failures.
#pragma once

#include <sys/wait.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {

constexpr std::uint64_t kMiB = 1u << 20;

class TenantsTest : public ::testing::Test {
  protected:
    void start(const std::string& settings, std::vector<std::string> environment = {}) {
        daemon_ = std::make_unique<Daemon>(session_settings("state_directory = \"" + state_.path() + "\"\n" + settings),
                                           std::move(environment));
    }
    ProcessEnd command(std::vector<std::string> arguments, const std::string& token = "") const {
        arguments.insert(arguments.begin(), GPUPOOL_COMMAND);
        arguments.insert(arguments.end(), {"--server", daemon_->address()});
        return run_program(arguments, {"GPUPOOL_TOKEN=" + token});
    }
    // The output of a command that succeeds.
    std::string output(const std::vector<std::string>& arguments, const std::string& token = "") const {
        const ProcessEnd end = command(arguments, token);
        EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0) << end.errors;
        return end.output;
    }
    std::string add(const std::string& tenant) const {
        std::string token = output({"tenant", "add", tenant});
        token.erase(token.find_last_not_of('\n') + 1);
        return token;
    }
    nlohmann::json status(const std::string& token = "") const {
        return nlohmann::json::parse(output({"status", "--json"}, token));
    }
    std::unique_ptr<Program> run(const std::string& token, const std::string& mode, std::uint64_t quota_bytes,
                                 std::vector<std::string> environment = {}, std::uint64_t held_bytes = 0) const {
        environment.insert(environment.end(), {"GPUPOOL_TOKEN=" + token, "QUOTA=" + std::to_string(quota_bytes),
                                               "HELD=" + std::to_string(held_bytes)});
        return std::make_unique<Program>(*daemon_, session_program(mode), environment);
    }
    std::unique_ptr<Program> hold(const std::string& token, std::vector<std::string> environment = {}) const {
        auto program = run(token, "quota_hold", 0, std::move(environment), kMiB);
        EXPECT_TRUE(program->says("ready")) << program->errors();
        return program;
    }

    TemporaryFolder state_;
    std::unique_ptr<Daemon> daemon_;
};

}  // namespace gpupool::test
