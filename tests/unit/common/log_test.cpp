// The log: silent by default, levels, whole lines from many threads, working in a forked child.
#include "common/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

namespace gpupool::log {
namespace {

class LogFile : public testing::Test {
  protected:
    LogFile() {
        char name[] = "/tmp/gpupool-log-XXXXXX";
        ::close(::mkstemp(name));
        path_ = name;
    }
    ~LogFile() override {
        to_stderr(Level::off);
        std::remove(path_.c_str());
    }

    std::vector<std::string> lines() const {
        std::ifstream file(path_);
        std::vector<std::string> result;
        for (std::string line; std::getline(file, line);) {
            result.push_back(line);
        }
        return result;
    }

    std::string path_;
};

TEST(Log, IsSilentByDefault) {
    for (Level level : {Level::trace, Level::debug, Level::info, Level::warn, Level::error}) {
        EXPECT_FALSE(enabled(level));
    }
    testing::internal::CaptureStderr();
    error("not wanted {}", 1);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, WritesToStderrWhenConfigured) {
    testing::internal::CaptureStderr();
    to_stderr(Level::warn);
    warn("seen {}", 7);
    info("not seen");
    to_stderr(Level::off);
    error("not seen any more");
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find(" warn  seen 7"), std::string::npos) << "by the setting's own word: " << text;
    EXPECT_EQ(text.find("not seen"), std::string::npos);
}

TEST(Log, LevelsHaveNames) {
    for (Level level : {Level::trace, Level::debug, Level::info, Level::warn, Level::error, Level::off}) {
        auto parsed = parse_level(to_string(level));
        ASSERT_TRUE(parsed);
        EXPECT_EQ(*parsed, level);
    }
    auto wrong = parse_level("loud");
    ASSERT_FALSE(wrong);
    EXPECT_NE(wrong.error().message.find("loud"), std::string::npos);
}

TEST_F(LogFile, HoldsLinesAtOrAboveTheLevel) {
    ASSERT_TRUE(to_file(path_, Level::info));
    debug("below");
    info("at {}", "level");
    ASSERT_TRUE(to_file(path_, Level::error));
    warn("below too");
    error("above");
    const auto written = lines();
    ASSERT_EQ(written.size(), 2u);
    EXPECT_TRUE(written[0].ends_with("info  at level")) << written[0];
    EXPECT_TRUE(written[1].ends_with("error above")) << written[1];
}

TEST_F(LogFile, IsReadableOnlyByTheUser) {
    std::remove(path_.c_str());
    ASSERT_TRUE(to_file(path_, Level::info));
    struct stat status {};
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(LogFile, ReportsWhyItCannotBeWritten) {
    auto status = to_file("/nonexistent/folder/log", Level::info);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("/nonexistent/folder/log"), std::string::npos);
    EXPECT_NE(status.error().message.find("No such file"), std::string::npos);
}

TEST_F(LogFile, RefusesAFifo) {
    const std::string fifo = path_ + ".fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const auto unread = to_file(fifo, Level::info);
    ASSERT_FALSE(unread);
    EXPECT_NE(unread.error().message.find(fifo + " is a FIFO"), std::string::npos) << unread.error().message;
    // With a reader, the log still must not write more than the FIFO takes.
    const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
    EXPECT_FALSE(to_file(fifo, Level::info));
    ::close(reader);
    ::unlink(fifo.c_str());
}

TEST_F(LogFile, MayBeDevNull) {
    EXPECT_TRUE(to_file("/dev/null", Level::info));
}

TEST_F(LogFile, LinesOfManyThreadsAreWhole) {
    ASSERT_TRUE(to_file(path_, Level::info));
    constexpr int kThreadCount = 4;
    constexpr int kEach = 200;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreadCount; ++t) {
        threads.emplace_back([t] {
            for (int i = 0; i < kEach; ++i) {
                info("<{}:{}>", t, i);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    const auto written = lines();
    ASSERT_EQ(written.size(), static_cast<std::size_t>(kThreadCount * kEach));
    for (const auto& line : written) {
        EXPECT_EQ(line.back(), '>');
        EXPECT_EQ(line.find('<'), line.rfind('<'));
    }
}

TEST_F(LogFile, ForkedChildKeepsLogging) {
    ASSERT_TRUE(to_file(path_, Level::info));
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            info("busy");
        }
    });
    for (int i = 0; i < 20; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(10);  // a lock that the parent held at the fork would hang
            info("child");
            ::_exit(0);
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    stop = true;
    busy.join();
    std::size_t children = 0;
    for (const auto& line : lines()) {
        children += line.ends_with("child") ? 1 : 0;
    }
    EXPECT_EQ(children, 20u);
}

}  // namespace
}  // namespace gpupool::log
