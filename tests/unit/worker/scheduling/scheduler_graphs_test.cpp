// Launches of graphs and the driver's queue, where each node takes a place.
#include <chrono>
#include <thread>

#include "tests/unit/worker/scheduling/scheduler_fixture.h"

namespace gpupool::test {
namespace {

using worker::StreamState;

class SchedulerGraphs : public SchedulerTest {
  protected:
    std::unique_ptr<worker::Entry> graph(std::string name, std::uint32_t nodes) {
        auto operation = step(std::move(name));
        operation->cost = nodes;
        return operation;
    }
};

TEST_F(SchedulerGraphs, GraphTakesAPlaceForEachNode) {
    StreamState& stream = add_stream(1);
    ASSERT_TRUE(may_issue(stream, 500));
    scheduler.issued(stream, 500);
    EXPECT_EQ(stream.outstanding, 500u);
    EXPECT_EQ(fake.records_on(stream.driver), 1u) << "a large graph is marked at once";
    // With the mark, 501 places of 960 are taken.
    EXPECT_TRUE(may_issue(stream, 459));
    EXPECT_FALSE(may_issue(stream, 460));
    EXPECT_TRUE(may_issue(stream)) << "single operations have their own credit";
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(stream.outstanding, 0u) << "all of its places are returned";
    EXPECT_TRUE(may_issue(stream, 960));
}

// An event follows small graphs. The driver is queried for it only when the stream lacks credit.
TEST_F(SchedulerGraphs, SmallGraphsShareAnEvent) {
    StreamState& stream = add_stream(1);
    const auto issue_graphs = [&](int count) {
        for (int i = 0; i < count; ++i) {
            scheduler.issued(stream, 10);
        }
    };
    issue_graphs(47);
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
    issue_graphs(1);
    EXPECT_EQ(fake.records_on(stream.driver), 1u);
    EXPECT_EQ(fake.events(), 1u);
    fake.complete(stream.driver);
    std::size_t asked = 0;
    fake.before_query = [&](CUstream) { ++asked; };
    scheduler.poll();
    EXPECT_EQ(asked, 0u) << "no query is needed";
    EXPECT_EQ(stream.outstanding, 480u);
    issue_graphs(47);
    EXPECT_TRUE(may_issue(stream, 10));
    EXPECT_EQ(asked, 1u);
    EXPECT_EQ(stream.outstanding, 471u) << "the last node before an event is counted with what follows";
}

TEST_F(SchedulerGraphs, EventReturnsTheCreditOfSmallGraphs) {
    StreamState& stream = add_stream(1);
    for (int i = 0; i < 94; ++i) {
        scheduler.issued(stream, 10);
    }
    EXPECT_EQ(fake.records_on(stream.driver), 1u);
    EXPECT_FALSE(may_issue(stream, 20));
    gate.queue(stream, graph("held", 20));
    scheduler.poll();
    EXPECT_FALSE(gate.run());
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"held"});
}

// An event only returns credit. A waiter gets a mark of its own, whose completion implies the event's.
TEST_F(SchedulerGraphs, WaiterBehindAnEventGetsAMark) {
    StreamState& stream = add_stream(1);
    for (int i = 0; i < 48; ++i) {
        scheduler.issued(stream, 10);
    }
    gate.when_complete(stream, note("complete"));
    EXPECT_EQ(fake.records_on(stream.driver), 2u);
    scheduler.poll();
    EXPECT_EQ(log, Log{});
    fake.complete(stream.driver, 1);
    scheduler.poll();
    EXPECT_EQ(log, Log{});
    fake.complete(stream.driver, 1);
    scheduler.poll();
    EXPECT_EQ(log, Log{"complete"});
    EXPECT_EQ(stream.outstanding, 0u);
    EXPECT_EQ(fake.event_synchronizations, 0u) << "no kernel prints";
}

TEST_F(SchedulerGraphs, DeadContextsEventIsDropped) {
    StreamState& stream = add_stream(1);
    for (int i = 0; i < 48; ++i) {
        scheduler.issued(stream, 10);
    }
    fake.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    gate.when_complete(stream, note("complete"));
    gate.queue(stream, graph("held", 900));
    fake.complete(stream.driver);
    poll_for_a_while();
    EXPECT_EQ(log, Log{"complete!700"});
    EXPECT_EQ(stream.completions.size(), 0u);
}

// Otherwise nothing would report that these few operations are complete.
TEST_F(SchedulerGraphs, HeldGraphMarksUnmarkedOperations) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    gate.queue(stream, graph("large", 960));
    EXPECT_FALSE(gate.run());
    EXPECT_FALSE(gate.run());
    EXPECT_EQ(fake.records_on(stream.driver), 1u);
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"large"});
}

TEST_F(SchedulerGraphs, GraphLargerThanTheQueueRunsAlone) {
    StreamState& stream = add_stream(1);
    constexpr std::uint32_t kHuge = 5000;
    EXPECT_TRUE(may_issue(stream, kHuge));
    scheduler.issued(stream);
    EXPECT_FALSE(may_issue(stream, kHuge)) << "not behind other work";
    gate.queue(stream, graph("huge", kHuge));
    EXPECT_FALSE(gate.run());
    scheduler.mark(stream, {});
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"huge"});
    scheduler.issued(stream, kHuge);
    EXPECT_FALSE(may_issue(stream)) << "nothing may follow it";
    EXPECT_FALSE(may_issue(stream, 2));
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(may_issue(stream, kHuge));
}

TEST_F(SchedulerGraphs, GraphNearTheDriversLimitIsHeldOnlyBehindOthers) {
    StreamState& stream = add_stream(1);
    EXPECT_TRUE(may_issue(stream, 1021));
    scheduler.issued(stream, 2);
    EXPECT_FALSE(may_issue(stream, 1021));
    EXPECT_TRUE(may_issue(add_stream(2), 1021)) << "each stream has its own";
}

TEST_F(SchedulerGraphs, HeldLaunchesKeepTheirOrderAndTheirCost) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream, 900);
    gate.queue(stream, graph("large", 500));
    gate.queue(stream, graph("small", 2));
    gate.queue(stream, step("single"));
    EXPECT_FALSE(gate.run());
    EXPECT_FALSE(may_issue(stream)) << "nothing overtakes them";
    EXPECT_EQ(log, Log{});
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"large", "small", "single"}));
}

// The scheduler's own events in the stream take places as well.
TEST_F(SchedulerGraphs, MarksCount) {
    StreamState& stream = add_stream(1);
    for (int i = 0; i < 10; ++i) {
        scheduler.mark(stream, {});
    }
    EXPECT_TRUE(may_issue(stream, 950));
    EXPECT_FALSE(may_issue(stream, 951));
}

TEST_F(SchedulerGraphs, CapturedLaunchesTakeNone) {
    StreamState& stream = add_stream(1);
    stream.capturing = true;
    scheduler.issued(stream, 5000);
    EXPECT_EQ(stream.outstanding, 0u);
    EXPECT_TRUE(may_issue(stream, 5000));
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
}

}  // namespace
}  // namespace gpupool::test
