// `gpupool status`, and gpupoold's messages about wrong settings.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/e2e/daemon/harness.h"

namespace gpupool::test {
namespace {

int exit_code(const ProcessEnd& end) {
    return WIFEXITED(end.status) ? WEXITSTATUS(end.status) : -1;
}

TEST(StatusCommand, ShowsServerDevicesAndSessionsAsATable) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.process_name = "trainer\033[31m\xff of a very long name indeed", .memory_bytes = 2ull << 30});
    const auto id = client.welcome();
    daemon.sessions(1);
    const auto shown = run_program({GPUPOOL_COMMAND, "status", "--server", daemon.address()});
    EXPECT_EQ(exit_code(shown), 0) << shown.errors;
    for (const auto& part : {daemon.address(), std::string("Stand-in GPU"), id, std::string("100 MiB / 2 GiB"),
                             std::string("100 MiB / 4 GiB"), std::string("0 B / 4 GiB"), std::string("trainer?[31m?"),
                             std::string("127.0.0.1:"), std::string("queued work waits: credit 2, data 1")}) {
        EXPECT_NE(shown.output.find(part), std::string::npos) << part << " is not in\n" << shown.output;
    }
    std::istringstream lines(shown.output);
    for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), 100u) << line;
    }
}

TEST(StatusCommand, GivesJsonWithStableNames) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.process_name = "trainer"});
    const auto id = client.welcome();
    daemon.sessions(1);
    const auto shown = run_program({GPUPOOL_COMMAND, "status", "--json"}, {"GPUPOOL_SERVER=" + daemon.address()});
    ASSERT_EQ(exit_code(shown), 0) << shown.errors;
    const auto json = nlohmann::json::parse(shown.output);
    EXPECT_EQ(json["server"]["address"], daemon.address());
    EXPECT_EQ(json["server"]["driver_version"], 13000);
    EXPECT_TRUE(json["server"].contains("version"));
    EXPECT_TRUE(json["server"].contains("uptime_seconds"));
    EXPECT_TRUE(json["server"].contains("driver"));
    ASSERT_EQ(json["devices"].size(), 2u);
    EXPECT_EQ(json["devices"][1]["index"], 1);
    EXPECT_EQ(json["devices"][1]["name"], "Stand-in GPU");
    EXPECT_EQ(json["devices"][1]["uuid"], "GPU-00000000-0000-0000-0000-000000000002");
    EXPECT_EQ(json["devices"][1]["memory_used_bytes"], 100u << 20);
    EXPECT_EQ(json["devices"][1]["memory_total_bytes"], 4ull << 30);
    ASSERT_EQ(json["sessions"].size(), 1u);
    const auto& session = json["sessions"][0];
    EXPECT_EQ(session["id"], id);
    EXPECT_EQ(session["device"], 1);
    EXPECT_EQ(session["memory_used_bytes"], 100u << 20);
    EXPECT_EQ(session["memory_quota_bytes"], 0);
    EXPECT_EQ(session["memory_total_bytes"], 4ull << 30);
    EXPECT_EQ(session["process_name"], "trainer");
    EXPECT_EQ(session["user_name"], "tester");
    EXPECT_EQ(session["user_id"], 1234);
    EXPECT_EQ(session["state"], "running");
    EXPECT_EQ(session["waits"], (nlohmann::json{{"credit", 2}, {"data", 1}}));
    for (const char* name : {"peer", "process_id", "age_seconds", "worker_process_id"}) {
        EXPECT_TRUE(session.contains(name)) << name;
    }
}

TEST(StatusCommand, WatchesWithAndWithoutAnInterval) {
    const Daemon daemon;
    for (const std::string watch : {"--watch", "--watch 0.1", "--json --watch 0.1"}) {
        const std::string mark = watch.starts_with("--json") ? "\"server\"" : "^Server";
        // grep ends after the second status, and the command when it can write no more.
        const auto shown = run_program({"/bin/sh", "-c",
                                        std::string(GPUPOOL_COMMAND) + " status " + watch + " --server " +
                                            daemon.address() + " | grep -m 2 -c '" + mark + "'"});
        EXPECT_EQ(shown.output, "2\n") << watch << shown.errors;
    }
}

TEST(StatusCommand, SuggestsWhatToDoWithoutAServer) {
    std::string address;
    {
        Daemon daemon;
        address = daemon.address();
        daemon.signal(SIGTERM);
        EXPECT_EQ(daemon.wait_for_end(milliseconds(3000)), 0);
    }
    const auto shown = run_program({GPUPOOL_COMMAND, "status", "--server", address});
    EXPECT_EQ(exit_code(shown), 1);
    EXPECT_EQ(shown.output, "");
    EXPECT_NE(shown.errors.find("no server reachable at " + address + ": check that gpupoold runs there"),
              std::string::npos)
        << shown.errors;
}

TEST(StatusCommand, ReportsTheServersRefusal) {
    const Daemon daemon("[auth]\ntokens = [\"a-good-token\"]\n");
    const auto refused =
        run_program({GPUPOOL_COMMAND, "status", "--server", daemon.address()}, {"GPUPOOL_TOKEN=a-wrong-token"});
    EXPECT_EQ(exit_code(refused), 1);
    EXPECT_NE(refused.errors.find("the token is not one of this server's: check GPUPOOL_TOKEN"), std::string::npos)
        << refused.errors;
    const auto shown =
        run_program({GPUPOOL_COMMAND, "status", "--server", daemon.address()}, {"GPUPOOL_TOKEN=a-good-token"});
    EXPECT_EQ(exit_code(shown), 0) << shown.errors;
}

TEST(StatusCommand, UserWithoutANameIsShownAsANumber) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.user_name = ""});
    client.welcome();
    daemon.sessions(1);
    const auto shown = run_program({GPUPOOL_COMMAND, "status", "--json", "--server", daemon.address()});
    const auto json = nlohmann::json::parse(shown.output);
    EXPECT_EQ(json["sessions"][0]["user_id"], 1234);
    EXPECT_FALSE(json["sessions"][0].contains("user_name")) << shown.output;
}

TEST(CommandLine, UnknownCommandIsNamedInTheError) {
    const auto end = run_program({GPUPOOL_COMMAND, "stauts"});
    EXPECT_EQ(exit_code(end), 2);
    EXPECT_NE(end.errors.find("'stauts'"), std::string::npos) << end.errors;
    EXPECT_NE(end.errors.find("status"), std::string::npos) << end.errors;
}

TEST(CommandLine, WrongArgumentsExitWithTwo) {
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "status", "--no-such-option"})), 2);
    for (const char* command : {"status", "run", "trace"}) {
        const auto end = run_program({GPUPOOL_COMMAND, command, "--server", "foo:bar", "--", "true"});
        EXPECT_EQ(exit_code(end), 2) << command;
    }
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "run", "--no-such-option", "--", "true"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "run"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOLD, "--no-such-option"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOLD, "--check", "--listen", "127.0.0.1:abc"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOLD, "--check", "--image-limit", "0"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOLD, "--check", "--stock", "65"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "run", "--memory", "0", "--", "true"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "run", "--memory", "1MiB", "--", "true"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "trace", "--events", "0", "--", "true"})), 2);
    EXPECT_EQ(exit_code(run_program({GPUPOOLD, "--version"})), 0);
    EXPECT_EQ(exit_code(run_program({GPUPOOL_COMMAND, "--help"})), 0);
}

TEST(CommandLine, BadSettingsAreReportedWithTheirLine) {
    struct BadSetting {
        const char* text;
        const char* expected;
    };
    const BadSetting settings[] = {
        {"listne = \"x\"\n", "2: there is no setting listne"},
        {"[limits]\nsesions = 3\n", "3: there is no setting limits.sesions"},
        {"[limits]\nsessions = \"3\"\n", "3: limits.sessions: must be a whole number"},
        {"[limits]\nsessions = 0\n", "3: limits.sessions: must be a whole number"},
        {"[limits]\nsession_memory = \"3 apples\"\n", "3: limits.session_memory:"},
        {"[limits]\nsession_memory = \"0\"\n",
         "3: limits.session_memory: must be more than 0, like \"8GiB\"; leave it out"},
        {"[limits]\nsession_memory = 0\n", "3: limits.session_memory: must be more than 0"},
        {"[limits]\nsession_memory = \"1KiB\"\n", "3: limits.session_memory: must be 2 MiB or more"},
        {"[limits]\nsession_memory = \"1GiB,0=1KiB\"\n", "3: limits.session_memory: must be 2 MiB or more"},
        {"[limits]\nsession_memory = \"0=1GiB,0=2GiB\"\n", "3: limits.session_memory: cannot read the quota '0=2GiB'"},
        {"listen = [\"127.0.0.1\", \"127.0.0.1:9470\"]\n", "2: listen: 127.0.0.1:9470 is given twice"},
        {"[auth]\ntokens = [\"short\"]\n", "3: auth.tokens: a token must have"},
        {"[auth]\ntokens = \"not-a-list\"\n", "3: auth.tokens: must be a list"},
        {"listen = \n", "2:"},
        {"[nothing]\na = 1\n", "2: there is no setting nothing"},
    };
    const TemporaryFolder folder;
    for (const BadSetting& setting : settings) {
        SCOPED_TRACE(setting.text);
        const auto config = folder.write("gpupoold.toml", std::string("# first line\n") + setting.text);
        const auto end = run_program({GPUPOOLD, "--config", config});
        EXPECT_EQ(exit_code(end), 2);
        EXPECT_NE(end.errors.find(config + ":" + setting.expected), std::string::npos) << end.errors;
    }
}

// Opening or reading a FIFO could block for ever.
TEST(CommandLine, FifosAreRefusedWithoutBlocking) {
    const TemporaryFolder folder;
    const std::string fifo = folder.path() + "/fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const auto config = folder.write("gpupoold.toml", "log_file = \"" + fifo + "\"\n");
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"--config", fifo}, {"--token-file", fifo}, {"--config", config}}) {
        std::vector<std::string> command{GPUPOOLD, "--listen", "127.0.0.1:0"};
        command.insert(command.end(), arguments.begin(), arguments.end());
        const auto end = run_program(command);
        EXPECT_GT(exit_code(end), 0) << end.errors;
        EXPECT_NE(end.errors.find(fifo + " is a FIFO"), std::string::npos) << end.errors;
    }
}

TEST(CommandLine, CheckFindsWhatWouldStopTheDaemonFromStarting) {
    const auto check = [](const std::vector<std::string>& options, const std::string& worker = STAND_IN_WORKER) {
        std::vector<std::string> command{GPUPOOLD, "--check", "--driver", "/dev/zero", "--worker", worker};
        command.insert(command.end(), options.begin(), options.end());
        return run_program(command);
    };
    const auto twice = check({"--listen", "127.0.0.1:9470", "--listen", "127.0.0.1:9470"});
    EXPECT_EQ(exit_code(twice), 2);
    EXPECT_NE(twice.errors.find("127.0.0.1:9470 is given twice"), std::string::npos) << twice.errors;
    EXPECT_EQ(exit_code(check({"--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"})), 0)
        << "two free ports are not a duplicate";
    const auto host = check({"--listen", "no-such-host.invalid:9470"});
    EXPECT_EQ(exit_code(host), 1);
    EXPECT_NE(host.errors.find("\"no-such-host.invalid\" cannot be resolved"), std::string::npos) << host.errors;
    const auto images = check({"--image-directory", "images"});
    EXPECT_EQ(exit_code(images), 1);
    EXPECT_NE(images.errors.find("images.directory: images does not begin with /"), std::string::npos) << images.errors;
    const auto tokens = check({"--token-file", "/none"});
    EXPECT_EQ(exit_code(tokens), 1);
    EXPECT_NE(tokens.errors.find("cannot read the token file /none"), std::string::npos) << tokens.errors;
    const auto worker = check({}, "/none");
    EXPECT_EQ(exit_code(worker), 1);
    EXPECT_NE(worker.errors.find("the setting worker names /none"), std::string::npos) << worker.errors;
}

TEST(CommandLine, CheckReportsItsFindingsAtEveryLogLevel) {
    const auto end = run_program({GPUPOOLD, "--check", "--driver", "/dev/zero", "--worker", STAND_IN_WORKER,
                                  "--log-level", "off", "--image-directory", "/nonexistent/images"});
    EXPECT_EQ(exit_code(end), 0) << end.errors;
    EXPECT_EQ(end.errors, "");
    for (const char* said :
         {"driver /dev/zero (version 13.0; stand-in)", "  Stand-in GPU GPU-", "/nonexistent/images"}) {
        EXPECT_NE(end.output.find(said), std::string::npos) << said << " in " << end.output;
    }
}

TEST(CommandLine, MissingDriverIsExplained) {
    const TemporaryFolder folder;
    const auto missing =
        run_program({GPUPOOLD, "--listen", "127.0.0.1:0", "--runtime-directory", folder.path() + "/run", "--worker",
                     STAND_IN_WORKER, "--driver", "/no/such/libcuda.so.1"});
    EXPECT_EQ(exit_code(missing), 1);
    EXPECT_NE(missing.errors.find("cannot read the driver library /no/such/libcuda.so.1"), std::string::npos)
        << missing.errors;
    const auto refused = run_program({GPUPOOLD, "--listen", "127.0.0.1:0", "--runtime-directory",
                                      folder.path() + "/run", "--worker", STAND_IN_WORKER, "--driver", "/dev/null"});
    EXPECT_EQ(exit_code(refused), 1);
    EXPECT_NE(refused.errors.find("the stand-in's own refusal"), std::string::npos) << refused.errors;
}

}  // namespace
}  // namespace gpupool::test
