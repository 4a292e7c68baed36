// `gpupool run`: the program's environment and arguments, its exit status and signals, and the private server's
// lifetime.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/e2e/daemon/harness.h"

namespace gpupool::test {
namespace {

class Run : public ::testing::Test {
  protected:
    Run() {
        library_ = folder_.write("libcuda.so.1", "");
        config_ = folder_.write("gpupoold.toml", "driver = \"" + library_ +
                                                     "\"\nworker = \"" STAND_IN_WORKER "\"\nruntime_directory = \"" +
                                                     folder_.path() + "/run\"\n");
    }

    ProcessEnd run(std::vector<std::string> options, const std::vector<std::string>& program,
                   const std::vector<std::string>& environment = {}) {
        std::vector<std::string> arguments{GPUPOOL_COMMAND, "run", "--client-library", folder_.path()};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.emplace_back("--");
        arguments.insert(arguments.end(), program.begin(), program.end());
        return run_program(arguments, environment);
    }

    ProcessEnd run_local(const std::vector<std::string>& program) {
        return run({"--local", "--server-config", config_}, program);
    }

    // Whether there is a process whose command line contains `text`.
    static bool running(const std::string& text) {
        const auto found = run_program({"pgrep", "-f", text});
        return WIFEXITED(found.status) && WEXITSTATUS(found.status) == 0;
    }

    TemporaryFolder folder_;
    std::string library_;
    std::string config_;
};

TEST_F(Run, SetsUpTheClientLibrary) {
    const auto end = run(
        {"--server", "10.1.2.3:7777", "--memory", "8GiB"},
        {"sh", "-c", "echo $LD_LIBRARY_PATH $TRITON_LIBCUDA_PATH $NUMBA_CUDA_DRIVER $GPUPOOL_SERVER $GPUPOOL_MEMORY"},
        {"LD_LIBRARY_PATH=/other"});
    EXPECT_EQ(end.output, folder_.path() + ":/other " + folder_.path() + " " + library_ + " 10.1.2.3:7777 8GiB\n")
        << end.errors;
}

TEST_F(Run, KeepsTheServerOfTheEnvironment) {
    EXPECT_EQ(run({}, {"sh", "-c", "echo $GPUPOOL_SERVER"}, {"GPUPOOL_SERVER=somewhere:1"}).output, "somewhere:1\n");
    EXPECT_EQ(
        run({}, {"sh", "-c", "echo $GPUPOOL_SERVER"}, {"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent"}).output,
        "127.0.0.1:9470\n");
}

TEST_F(Run, PassesArgumentsUnchanged) {
    EXPECT_EQ(run({}, {"printf", "%s|", "--server", "a b", "--", "status"}).output, "--server|a b|--|status|");
}

TEST_F(Run, ReturnsTheProgramsExitStatus) {
    const auto end = run({}, {"sh", "-c", "exit 7"});
    EXPECT_TRUE(WIFEXITED(end.status));
    EXPECT_EQ(WEXITSTATUS(end.status), 7);
    const auto killed = run({}, {"sh", "-c", "kill -TERM $$"});
    EXPECT_TRUE(WIFSIGNALED(killed.status));
    EXPECT_EQ(WTERMSIG(killed.status), SIGTERM);
}

TEST_F(Run, ReportsWhatIsMissing) {
    const auto program = run({}, {"no-such-program"});
    EXPECT_EQ(WEXITSTATUS(program.status), 127);
    EXPECT_NE(program.errors.find("there is no program no-such-program"), std::string::npos) << program.errors;
    const auto unexecutable = run({}, {"/"});
    EXPECT_EQ(WEXITSTATUS(unexecutable.status), 126);
    const auto library = run_program({GPUPOOL_COMMAND, "run", "--client-library", "/nonexistent", "--", "true"});
    EXPECT_EQ(WEXITSTATUS(library.status), 125);
    EXPECT_NE(library.errors.find("/nonexistent/libcuda.so.1"), std::string::npos) << library.errors;
    EXPECT_EQ(WEXITSTATUS(run({"--memory", "much"}, {"true"}).status), 2);
    EXPECT_EQ(WEXITSTATUS(run({"--driver", "software"}, {"true"}).status), 2) << "--driver is for --local";
}

TEST_F(Run, LocalStartsAPrivateServer) {
    const auto end =
        run_local({"sh", "-c", std::string("echo $GPUPOOL_SERVER; ") + GPUPOOL_COMMAND + " status --json; exit 5"});
    EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 5) << end.errors;
    const auto address = end.output.substr(0, end.output.find('\n'));
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << end.output;
    EXPECT_NE(end.output.find("\"address\": \"" + address + "\""), std::string::npos) << end.output;
    EXPECT_FALSE(cli::ask_status(address, "", milliseconds(2000)).ok()) << "the server is still there";
    EXPECT_FALSE(running(config_));
}

TEST_F(Run, LocalOverridesOnlyServerAndToken) {
    const std::vector<std::string> local{"--local", "--server-config", config_};
    const auto end = run(local, {"sh", "-c", "echo [$GPUPOOL_TOKEN_FILE] ${#GPUPOOL_TOKEN}"},
                         {"GPUPOOL_TOKEN_FILE=/nonexistent", "GPUPOOL_SERVER=no server"});
    EXPECT_EQ(end.output, "[] 64\n") << end.errors;
    const auto wrong = run(local, {"true"}, {"GPUPOOL_LANES=many"});
    EXPECT_EQ(WEXITSTATUS(wrong.status), 125);
    EXPECT_NE(wrong.errors.find("GPUPOOL_LANES"), std::string::npos) << wrong.errors;
}

TEST_F(Run, FailedTraceKeepsTheEarlierOne) {
    const std::string last = "[\n{}\n]\n";
    const auto output = folder_.write("trace.json", last);
    const auto summary = folder_.write("summary", "call 1\n");
    const auto content = [](const std::string& path) {
        std::stringstream text;
        text << std::ifstream(path).rdbuf();
        return text.str();
    };
    const auto trace = [&](std::vector<std::string> options, const std::string& program,
                           const std::vector<std::string>& environment = {}) {
        std::vector<std::string> arguments{GPUPOOL_COMMAND, "trace",    "--client-library",
                                           folder_.path(),  "--output", output};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.insert(arguments.end(), {"--", program});
        return WEXITSTATUS(run_program(arguments, environment).status);
    };
    EXPECT_EQ(trace({"--summary", summary}, "no-such-program"), 127);
    EXPECT_EQ(trace({"--summary", summary}, "/"), 126);
    EXPECT_EQ(trace({"--summary", summary}, "true", {"GPUPOOL_LANES=many"}), 125);
    EXPECT_EQ(trace({"--summary", folder_.path() + "/nowhere/summary"}, "true"), 125);
    EXPECT_EQ(trace({"--summary", summary, "--local", "--server-config", config_, "--driver", "/dev/null"}, "true"),
              125);
    EXPECT_EQ(content(output), last);
    EXPECT_EQ(content(summary), "call 1\n");
    EXPECT_EQ(trace({"--summary", summary}, "true"), 0);
    EXPECT_EQ(content(output), "[\n]\n");
    EXPECT_EQ(content(summary), "");
}

TEST_F(Run, LocalRefusesOtherClients) {
    const auto end = run_local({"sh", "-c", std::string("GPUPOOL_TOKEN=another-token ") + GPUPOOL_COMMAND + " status"});
    EXPECT_EQ(WEXITSTATUS(end.status), 1);
    EXPECT_NE(end.errors.find("the token is not one of this server's"), std::string::npos) << end.errors;
}

TEST_F(Run, LocalEndsWithTheProgramsSignal) {
    const auto end = run_local({"sh", "-c", "kill -KILL $$"});
    EXPECT_TRUE(WIFSIGNALED(end.status));
    EXPECT_EQ(WTERMSIG(end.status), SIGKILL);
    EXPECT_FALSE(running(config_));
}

TEST_F(Run, LocalReportsWhyItsServerDoesNotStart) {
    const auto end = run({"--local", "--server-config", config_, "--driver", "/dev/null"}, {"true"});
    EXPECT_EQ(WEXITSTATUS(end.status), 125);
    EXPECT_NE(end.errors.find("the stand-in's own refusal"), std::string::npos) << end.errors;
    const auto missing = run({"--local", "--server-config", config_}, {"no-such-program"});
    EXPECT_EQ(WEXITSTATUS(missing.status), 127);
    EXPECT_FALSE(running(config_));
}

TEST_F(Run, LocalForwardsSignalsAndItsServerDiesWithIt) {
    for (const int number : {SIGTERM, SIGKILL}) {
        const auto started = folder_.path() + "/started" + std::to_string(number);
        std::vector<std::string> arguments{GPUPOOL_COMMAND,
                                           "run",
                                           "--client-library",
                                           folder_.path(),
                                           "--local",
                                           "--server-config",
                                           config_,
                                           "--",
                                           "sh",
                                           "-c",
                                           "sleep 60 & trap 'kill $!; exit 9' TERM; touch " + started + "; wait"};
        std::vector<char*> pointers;
        for (auto& argument : arguments) {
            pointers.push_back(argument.data());
        }
        pointers.push_back(nullptr);
        pid_t process = -1;
        ASSERT_EQ(::posix_spawn(&process, GPUPOOL_COMMAND, nullptr, nullptr, pointers.data(), environ), 0);
        ASSERT_TRUE(eventually([&] { return ::access(started.c_str(), F_OK) == 0; }));
        ::kill(process, number);
        int status = 0;
        ::waitpid(process, &status, 0);
        if (number == SIGTERM) {
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9);
        }
        EXPECT_TRUE(eventually([&] { return !running("gpupoold.*" + config_); }, milliseconds(5000)));
        (void)run_program({"pkill", "-TERM", "-f", "touch " + started});  // the SIGKILL above left the program orphaned
    }
}

}  // namespace
}  // namespace gpupool::test
