// The timeline's file, and the mapping between two clocks.

#include "client/core/tracing/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "client/core/tracing/server_trace.h"
#include "tests/support/text.h"

namespace gpupool::client {
namespace {

class TimelineFile : public ::testing::Test {
  protected:
    TimelineFile() { std::filesystem::remove(path_); }
    ~TimelineFile() override { std::filesystem::remove(path_); }

    [[nodiscard]] std::string text() const {
        std::ostringstream out;
        out << std::ifstream(path_).rdbuf();
        return out.str();
    }
    void put(const std::string& content) const { std::ofstream(path_) << content; }
    std::unique_ptr<Timeline> open(std::uint64_t max_events = 100) {
        auto file = Timeline::open(path_);
        EXPECT_TRUE(file) << file.error().message;
        return file ? std::make_unique<Timeline>(std::move(*file), max_events) : nullptr;
    }

    const std::string path_ = ::testing::TempDir() + "timeline_test." + std::to_string(::getpid());
};

TEST_F(TimelineFile, EventsAreInMicrosecondsAndWrittenByAFlush) {
    const auto timeline = open();
    timeline->slice({Actor::program, 7}, "call", "a \"name\"\n", 1'234'567, 1'235'000, "\"bytes\":3");
    EXPECT_EQ(text(), "[\n");
    timeline->flush();
    EXPECT_NE(text().find("\"ts\":1234.567,\"dur\":0.433"), std::string::npos) << text();
    EXPECT_NE(text().find("\"args\":{\"bytes\":3}},\n"), std::string::npos) << text();
}

TEST_F(TimelineFile, EventsBeyondTheLimitAreCountedAndReportedMissing) {
    const auto timeline = open(3);
    for (int i = 0; i < 5; ++i) {
        timeline->slice({Actor::program, 1}, "call", "call", 10, 20, {});
    }
    EXPECT_EQ(timeline->dropped(), 2);
    timeline->finish(30, {});
    EXPECT_EQ(test::count_of("\"ph\":\"X\"", text()), 3);
    EXPECT_NE(text().find("2 events beyond the limit of 3"), std::string::npos) << text();
}

TEST_F(TimelineFile, MemoryIsBoundedByTheBuffer) {
    const auto timeline = open(10'000);
    for (int i = 0; i < 2000; ++i) {
        timeline->slice({Actor::program, 1}, "call", "call", 10, 20, {});
    }
    EXPECT_GE(text().size() + Timeline::kBufferBytes, 2000 * 60);  // the part that exceeds the buffer is in the file
    timeline->flush();
    EXPECT_EQ(test::count_of("\"ph\":\"X\"", text()), 2000);
}

TEST_F(TimelineFile, ClosedFileIsContinuedAndForeignFileIsKept) {
    put("[\n{\"ph\":\"X\"}\n]\n");
    const auto timeline = open();
    timeline->slice({Actor::program, 1}, "call", "second", 10, 20, {});
    timeline->flush();
    EXPECT_EQ(text().rfind("[\n{\"ph\":\"X\"},\n{\"ph\":\"X\",\"pid\"", 0), 0) << text();
    put("precious");
    EXPECT_FALSE(Timeline::open(path_));
    EXPECT_EQ(text(), "precious");
}

TEST_F(TimelineFile, PeersNamesCannotBreakTheFormat) {
    EXPECT_EQ(Timeline::escape("a\"b\\c\nd\xff"), "a\\\"b\\\\c?d?");
}

TEST(ClockMap, ShortExchangeImprovesOnALongOne) {
    ClockMap clock;
    const Lock lock(clock.adding);
    constexpr std::uint64_t kOffset = 5'000'000'000;
    clock.add(1'000'000, 1'900'000 + kOffset, 2'000'000);  // the request took long, the answer arrived at once
    EXPECT_EQ(clock.uncertainty_ns(), 500'000u);
    clock.add(2'100'000, 2'105'000 + kOffset, 2'110'000);
    EXPECT_LE(clock.uncertainty_ns(), 6'000u);
    EXPECT_NEAR(static_cast<double>(clock.to_ours(3'000'000 + kOffset)), 3'000'000, 6'000);
}

TEST(ClockMap, FasterServerClockIsFollowed) {
    ClockMap clock;
    const Lock lock(clock.adding);
    for (std::uint64_t second = 1; second < 100; ++second) {
        // the server's clock gains 50 us a second
        const std::uint64_t now = second * 1'000'000'000, theirs = now + second * 50'000;
        clock.add(now - 10'000, theirs, now + 10'000);
        EXPECT_NEAR(static_cast<double>(clock.to_ours(theirs)), static_cast<double>(now), 10'000) << second;
    }
}

TEST(ClockMap, ClockJumpIsAccepted) {
    ClockMap clock;
    const Lock lock(clock.adding);
    clock.add(1000, 2000, 3000);
    clock.add(10'000, 9'000'000'000, 11'000);
    EXPECT_NEAR(static_cast<double>(clock.to_ours(9'000'000'000)), 10'500, 500);
}

}  // namespace
}  // namespace gpupool::client
