// The sources of settings, their precedence, and the messages about wrong settings.
#include "client/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace gpupool::client {
namespace {

class ConfigTest : public testing::Test {
  protected:
    ConfigTest() {
        char name[] = "/tmp/gpupool-config-XXXXXX";
        folder_ = ::mkdtemp(name);
        variables_["HOME"] = folder_ + "/home";
    }
    ~ConfigTest() override { std::filesystem::remove_all(folder_); }

    void write(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(path).parent_path());
        std::ofstream(path) << text;
    }

    Result<Config> load() {
        return load_config(
            [this](const char* name) -> std::optional<std::string> {
                const auto found = variables_.find(name);
                if (found == variables_.end()) {
                    return std::nullopt;
                }
                return found->second;
            },
            system_file());
    }

    std::string system_file() const { return folder_ + "/etc/client.toml"; }
    std::string home_file() const { return folder_ + "/home/.config/gpupool/client.toml"; }

    void expect_error(std::initializer_list<std::string> parts) {
        auto config = load();
        ASSERT_FALSE(config);
        for (const std::string& part : parts) {
            EXPECT_NE(config.error().message.find(part), std::string::npos) << part << " in " << config.error().message;
        }
    }

    std::string folder_;
    std::map<std::string, std::string> variables_;
};

TEST_F(ConfigTest, DefaultsNeedNoSettings) {
    variables_.clear();
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->server, "");
    EXPECT_EQ(config->log_file, "");
    EXPECT_EQ(config->connect_timeout.count(), 5000);
    EXPECT_EQ(config->wait_when_full.count(), 0);
    EXPECT_EQ(config->transport, transport::Choice::automatic);
    EXPECT_FALSE(config->synchronous);
    EXPECT_FALSE(config->memory.any());
    EXPECT_EQ(config->source, "");
}

TEST_F(ConfigTest, TransportAndSocketPath) {
    write(home_file(), "server = \"unix:/run/gpupool.sock\"\ntransport = \"shm\"\n");
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->server, "unix:/run/gpupool.sock");
    EXPECT_EQ(config->transport, transport::Choice::shm);
    variables_["GPUPOOL_TRANSPORT"] = "tcp";
    EXPECT_EQ(load()->transport, transport::Choice::tcp);
}

TEST_F(ConfigTest, EverySettingFromAFile) {
    write(home_file(), R"(
server = "gpu.example:9470"
token = "secret"
memory = "8GiB"
log = "/tmp/x.log"
log_level = "debug"
connect_timeout = 2.5
wait_when_full = "10m"
sync = true
trace = "/tmp/trace"
trace_events = 5000
summary = true
)");
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->server, "gpu.example:9470");
    EXPECT_EQ(config->token, "secret");
    EXPECT_EQ(config->memory.each_bytes, 8ull << 30);
    EXPECT_EQ(config->log_file, "/tmp/x.log");
    EXPECT_EQ(config->log_level, log::Level::debug);
    EXPECT_EQ(config->connect_timeout.count(), 2500);
    EXPECT_EQ(config->wait_when_full, std::chrono::minutes(10));
    EXPECT_TRUE(config->synchronous);
    EXPECT_EQ(config->trace_file, "/tmp/trace");
    EXPECT_EQ(config->trace_events, 5000u);
    EXPECT_EQ(config->summary_file, kStandardErrorName);
    EXPECT_EQ(config->source, home_file());
}

TEST_F(ConfigTest, WishesForGpus) {
    write(home_file(), "gpus = 2\nclass = \"exclusive\"\npriority = 0\nverbose = true\n");
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->gpus, 2U);
    EXPECT_EQ(config->session_class, SessionClass::exclusive);
    EXPECT_EQ(config->priority, 0U);
    EXPECT_TRUE(config->verbose);
    for (const auto& [variable, bad] :
         {std::pair("GPUPOOL_GPUS", "0"), std::pair("GPUPOOL_GPUS", "65"), std::pair("GPUPOOL_CLASS", "mine"),
          std::pair("GPUPOOL_PRIORITY", "101"), std::pair("GPUPOOL_PRIORITY", "-1")}) {
        variables_[variable] = bad;
        const auto refused = load();
        ASSERT_FALSE(refused) << variable;
        EXPECT_TRUE(refused.error().message.starts_with(variable)) << refused.error().message;
        variables_.erase(variable);
    }
    variables_["GPUPOOL_GPUS"] = "3";
    variables_["GPUPOOL_CLASS"] = "shared";
    variables_["GPUPOOL_PRIORITY"] = "7";
    config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->gpus, 3U) << "the variable wins";
    EXPECT_EQ(config->session_class, SessionClass::shared);
    EXPECT_EQ(config->priority, 7U);
    variables_.erase("GPUPOOL_GPUS");
    variables_.erase("GPUPOOL_CLASS");
    variables_.erase("GPUPOOL_PRIORITY");
    for (const auto& [key, bad] :
         {std::pair("gpus", "0"), std::pair("gpus", "\"many\""), std::pair("class", "\"mine\""),
          std::pair("class", "1"), std::pair("priority", "101"), std::pair("memory", "0")}) {
        write(home_file(), "verbose = false\n" + std::string(key) + " = " + bad + "\n");
        expect_error({home_file() + ":2: " + key + ": "});
    }
}

TEST_F(ConfigTest, EnvironmentTakesPrecedence) {
    write(home_file(), "server = \"file:1\"\nmemory = 4194304\nsync = true\n");
    variables_["GPUPOOL_SERVER"] = "environment:2";
    variables_["GPUPOOL_SYNC"] = "0";
    variables_["GPUPOOL_MEMORY"] = "";  // counts as unset
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->server, "environment:2");
    EXPECT_FALSE(config->synchronous);
    EXPECT_EQ(config->memory.each_bytes, 4u << 20);
}

TEST_F(ConfigTest, FirstFileTakesPrecedence) {
    write(system_file(), "server = \"system:1\"\n");
    auto config = load();
    ASSERT_TRUE(config);
    EXPECT_EQ(config->server, "system:1");
    write(home_file(), "server = \"home:1\"\n");
    EXPECT_EQ(load()->server, "home:1");
    variables_["XDG_CONFIG_HOME"] = folder_ + "/xdg";
    EXPECT_EQ(load()->server, "home:1");
    write(folder_ + "/xdg/gpupool/client.toml", "server = \"xdg:1\"\n");
    EXPECT_EQ(load()->server, "xdg:1");
    write(folder_ + "/mine.toml", "server = \"mine:1\"\n");
    variables_["GPUPOOL_CONFIG"] = folder_ + "/mine.toml";
    EXPECT_EQ(load()->server, "mine:1");
    variables_["GPUPOOL_CONFIG"] = folder_ + "/none.toml";
    expect_error({"GPUPOOL_CONFIG", folder_ + "/none.toml"});
}

TEST_F(ConfigTest, TokensMayBeInFiles) {
    write(folder_ + "/home/.config/gpupool/token", "s3cret\n");
    write(home_file(), "token_file = \"token\"\n");
    auto config = load();
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->token, "s3cret");
    variables_["GPUPOOL_TOKEN"] = "other";
    EXPECT_EQ(load()->token, "other");
    variables_["GPUPOOL_TOKEN_FILE"] = "/nonexistent";
    expect_error({"GPUPOOL_TOKEN", "GPUPOOL_TOKEN_FILE"});
    variables_.erase("GPUPOOL_TOKEN");
    expect_error({"/nonexistent"});
}

TEST_F(ConfigTest, MistakesAreReported) {
    write(home_file(), "server = \"a:1\"\nsever = \"b:1\"\n");
    expect_error({home_file() + ":2", "sever", "unknown setting", "connect_timeout"});
    write(home_file(), "\nmemory = \"plenty\"\n");
    expect_error({home_file() + ":2", "memory", "plenty"});
    write(home_file(), "\nmemory = 2097151\n");
    expect_error({home_file() + ":2", "memory", "2 MiB or more"});
    write(home_file(), "\nmemory = 2097152\n");
    EXPECT_TRUE(load());
    write(home_file(), "server = \n");
    expect_error({home_file() + ":1"});
    write(home_file(), "server = [1]\n");
    expect_error({home_file() + ":1", "server", "expected"});
    write(home_file(), "token = \"a\"\ntoken_file = \"b\"\n");
    expect_error({home_file(), "token_file"});
    write(home_file(), std::string(65 * 1024, '#'));
    expect_error({home_file(), "64 KiB"});
}

// Reading a FIFO would block until another process writes to it.
TEST_F(ConfigTest, OnlyRegularFilesAreRead) {
    const std::string fifo = folder_ + "/fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    variables_ = {{"GPUPOOL_CONFIG", fifo}};
    expect_error({fifo, "FIFO"});
    variables_ = {{"GPUPOOL_TOKEN_FILE", fifo}};
    expect_error({"token file", fifo, "FIFO"});
    variables_ = {{"GPUPOOL_TOKEN_FILE", folder_}};
    expect_error({"token file", folder_, "folder"});
    variables_ = {{"GPUPOOL_CONFIG", "/dev/zero"}};
    expect_error({"/dev/zero", "device"});
    variables_ = {{"GPUPOOL_CONFIG", "/dev/null"}};
    EXPECT_TRUE(load());
}

TEST_F(ConfigTest, WrongVariablesAreReported) {
    const std::pair<const char*, const char*> wrong[] = {{"GPUPOOL_SERVER", "unix:relative"},
                                                         {"GPUPOOL_TRANSPORT", "udp"},
                                                         {"GPUPOOL_SERVER", ":9470"},
                                                         {"GPUPOOL_SERVER", "host:"},
                                                         {"GPUPOOL_MEMORY", "8 elephants"},
                                                         {"GPUPOOL_MEMORY", "0"},
                                                         {"GPUPOOL_MEMORY", "1MiB"},
                                                         {"GPUPOOL_MEMORY", "8GiB,1=1MiB"},
                                                         {"GPUPOOL_CONNECT_TIMEOUT", "0"},
                                                         {"GPUPOOL_CONNECT_TIMEOUT", "1000h"},
                                                         {"GPUPOOL_LOG_LEVEL", "shouting"},
                                                         {"GPUPOOL_SYNC", "maybe"},
                                                         {"GPUPOOL_WAIT_WHEN_FULL", "25h"},
                                                         {"GPUPOOL_SPIN", "sometimes"},
                                                         {"GPUPOOL_SPIN", "3x"},
                                                         {"GPUPOOL_SPIN", "0"}};
    for (const auto& [name, value] : wrong) {
        variables_ = {{name, value}};
        expect_error({name});
    }
}

TEST_F(ConfigTest, DefaultPortIsOptional) {
    variables_["GPUPOOL_SERVER"] = "host";
    EXPECT_EQ(load()->server, "host:9470");
}

TEST_F(ConfigTest, LogIsOpenedOnlyWhenConfigured) {
    ASSERT_TRUE(open_log(Config{}));
    EXPECT_FALSE(log::enabled(log::Level::error));
    Config config;
    config.log_file = folder_ + "/log";
    ASSERT_TRUE(open_log(config));
    EXPECT_TRUE(log::enabled(log::Level::info));
    log::to_stderr(log::Level::off);
}

}  // namespace
}  // namespace gpupool::client
