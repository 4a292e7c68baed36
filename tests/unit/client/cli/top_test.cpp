// What `gpupool top` knows and shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "client/cli/top_model.h"
#include "client/cli/top_screen.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using cli::ServerStatus;
using cli::SessionStatus;
using cli::sparkline;
using cli::top_bar;
using cli::top_screen;
using cli::TopLine;
using cli::TopModel;
using cli::TopSort;

constexpr TopModel::TimePoint kBegin{};

SessionStatus session(const std::string& id, const std::string& tenant, std::uint64_t memory_bytes,
                      std::uint64_t copied_bytes = 0, std::uint64_t age_seconds = 0) {
    SessionStatus status;
    status.id = id;
    status.tenant = tenant;
    status.memory_used_bytes = memory_bytes;
    status.bytes_in = copied_bytes / 2;
    status.bytes_out = copied_bytes - copied_bytes / 2;
    status.age_seconds = age_seconds;
    status.state = "running";
    return status;
}

ServerStatus server(std::vector<SessionStatus> sessions) {
    ServerStatus status;
    status.version = "0.1.0";
    status.listen = "127.0.0.1:9470";
    status.devices.resize(2);
    status.devices[0].memory_total_bytes = 1 << 30;
    status.devices[0].memory_used_bytes = 1 << 29;
    status.devices[1].index = 1;
    status.sessions = std::move(sessions);
    return status;
}

std::string ids(const TopModel& model) {
    std::string all;
    for (const TopModel::Session* shown : model.sessions()) {
        all += (all.empty() ? "" : " ") + shown->now.id;
    }
    return all;
}

std::string text(const std::vector<TopLine>& lines) {
    std::string all;
    for (const TopLine& line : lines) {
        all += line.text + "\n";
    }
    return all;
}

TEST(TopModel, SortsByEachKey) {
    TopModel model;
    model.update(server({session("a", "zoe", 10, 0, 5), session("b", "yan", 30, 0, 7), session("c", "xin", 20, 0, 6)}),
                 kBegin);
    model.update(
        server({session("a", "zoe", 10, 900, 5), session("b", "yan", 30, 0, 7), session("c", "xin", 20, 50, 6)}),
        kBegin + 1s);
    EXPECT_EQ(ids(model), "b c a") << "by memory";
    model.next_sort();
    EXPECT_EQ(model.sort(), TopSort::copied);
    EXPECT_EQ(ids(model), "a c b");
    model.reverse();
    EXPECT_EQ(ids(model), "b c a");
    model.reverse();
    model.next_sort();
    EXPECT_EQ(ids(model), "b c a") << "by age";
    model.next_sort();
    EXPECT_EQ(ids(model), "c b a") << "by tenant";
    model.next_sort();
    EXPECT_EQ(model.sort(), TopSort::memory);
}

TEST(TopModel, KeepsAHistoryOfEachSession) {
    TopModel model;
    model.update(server({session("a", "zoe", 10, 1000)}), kBegin);
    EXPECT_EQ(model.sessions()[0]->copied_now(), 0U) << "what it copied before is not of this second";
    model.update(server({session("a", "zoe", 20, 5000)}), kBegin + 2s);
    EXPECT_EQ(model.sessions()[0]->copied_now(), 2000U);
    model.update(server({session("a", "zoe", 20, 10)}), kBegin + 3s);
    EXPECT_EQ(model.sessions()[0]->copied_now(), 0U) << "less than before is nothing";
    EXPECT_EQ(model.sessions()[0]->memory_bytes, (std::deque<std::uint64_t>{10, 20, 20}));
    for (std::size_t i = 0; i < 2 * TopModel::kHistory; ++i) {
        model.update(server({session("a", "zoe", i)}), kBegin + 4s + i * 1s);
    }
    EXPECT_EQ(model.sessions()[0]->memory_bytes.size(), TopModel::kHistory);
    EXPECT_EQ(model.sessions()[0]->memory_bytes.back(), 2 * TopModel::kHistory - 1);
    model.update(server({}), kBegin + 1h);
    model.update(server({session("a", "zoe", 7)}), kBegin + 1h + 1s);
    EXPECT_EQ(model.sessions()[0]->memory_bytes.size(), 1U) << "an ended session is forgotten";
}

TEST(TopModel, ShowsOneTenantAfterTheOther) {
    TopModel model;
    model.update(server({session("a", "zoe", 1), session("b", "amy", 2)}), kBegin);
    EXPECT_EQ(ids(model), "b a");
    model.next_tenant();
    EXPECT_EQ(ids(model), "b");
    model.next_tenant();
    EXPECT_EQ(ids(model), "a");
    model.next_tenant();
    EXPECT_EQ(ids(model), "b a");
    model.set_tenant("another");
    EXPECT_EQ(ids(model), "");
}

TEST(TopScreen, ShowsDevicesSessionsAndTheirHistories) {
    TopModel model;
    ServerStatus status = server({session("s-one", "zoe", 1 << 20), session("s-two", "amy", 1 << 21)});
    status.queue.push_back({1, "amy", "tcp 10.0.0.1:5", "train", 12, "no GPU is free"});
    model.update(status, kBegin);
    model.update(status, kBegin + 1s);
    const std::string shown = text(top_screen(model, {24, 160, true, 0}, kBegin + 1s));
    for (const char* part :
         {"gpupool 0.1.0", "127.0.0.1:9470", "sort memory", "GPU 0", "512 MiB / 1 GiB", "#", "GPU 1", "s-one", "s-two",
          "1 MiB", "2 MiB", "██", "▁▁", "QUEUE  1 waiting", "no GPU is free", "q quit"}) {
        EXPECT_NE(shown.find(part), std::string::npos) << part << " is not in\n" << shown;
    }
    EXPECT_LT(shown.find("s-two"), shown.find("s-one"));
    EXPECT_EQ(text(top_screen(model, {24, 160, false, 0}, kBegin)).find("█"), std::string::npos);
    EXPECT_EQ(text(top_screen(model, {24, 160, true, 1}, kBegin)).find("s-two"), std::string::npos) << "scrolled";
}

TEST(TopScreen, SaysThatTheServerDoesNotAnswer) {
    TopModel model;
    model.update(server({session("s-one", "zoe", 1)}), kBegin);
    model.lose("no server reachable", kBegin + 1s);
    model.lose("no server reachable", kBegin + 5s);
    const std::string shown = text(top_screen(model, {24, 80, true, 0}, kBegin + 6s));
    EXPECT_NE(shown.find("No answer for 5 s, trying again: no server reachable"), std::string::npos) << shown;
    EXPECT_NE(shown.find("s-one"), std::string::npos) << "what was known stays";
    model.update(server({}), kBegin + 7s);
    EXPECT_EQ(text(top_screen(model, {24, 80, true, 0}, kBegin + 7s)).find("No answer"), std::string::npos);
}

TEST(TopScreen, FitsEverySize) {
    TopModel model;
    std::vector<SessionStatus> sessions;
    for (int i = 0; i < 30; ++i) {
        sessions.push_back(session("session-" + std::to_string(i), "tenant", 1));
    }
    ServerStatus status = server(sessions);
    status.queue.resize(9);
    model.update(status, kBegin);
    model.lose("why", kBegin);
    for (std::size_t rows = 1; rows < 60; ++rows) {
        for (const std::size_t columns : {1U, 2U, 9U, 40U, 80U, 133U, 300U}) {
            const auto lines = top_screen(model, {rows, columns, true, 0}, kBegin);
            EXPECT_LE(lines.size(), rows);
            for (const TopLine& line : lines) {
                const auto width =
                    std::count_if(line.text.begin(), line.text.end(), [](char c) { return (c & 0xC0) != 0x80; });
                EXPECT_LE(static_cast<std::size_t>(width), columns);
            }
        }
    }
}

TEST(TopScreen, DrawsBarsAndHistories) {
    EXPECT_EQ(top_bar(0, 0, 100, 12), "[..........]");
    EXPECT_EQ(top_bar(50, 70, 100, 12), "[#####++...]");
    EXPECT_EQ(top_bar(50, 20, 100, 12), "[#####.....]");
    EXPECT_EQ(top_bar(500, 500, 100, 12), "[##########]") << "more than there is";
    EXPECT_EQ(top_bar(1, 1, 0, 12), "[..........]");
    EXPECT_EQ(top_bar(1, 1, 1, 2), "");
    EXPECT_EQ(sparkline({0, 7, 14}, 5, true), "  ▁▅█");
    EXPECT_EQ(sparkline({0, 0}, 2, true), "▁▁");
    EXPECT_EQ(sparkline({9, 7, 14}, 2, false), "+@");
    EXPECT_EQ(sparkline({}, 3, true), "   ");
}

}  // namespace
}  // namespace gpupool::test
