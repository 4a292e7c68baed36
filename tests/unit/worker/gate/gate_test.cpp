// For which reasons entries wait at the gate, and in which order they go.
#include "protocol/calls/call.h"
#include "tests/unit/worker/scheduling/scheduler_fixture.h"

namespace gpupool::test {
namespace {

using calls::Kind;
using worker::Gate;
using worker::Passage;
using worker::Queue;
using worker::Reason;
using worker::StreamState;

class GateTest : public SchedulerTest {
  protected:
    std::size_t waits_for(Reason reason) { return gate.waits().at(static_cast<std::size_t>(reason)); }
    std::unique_ptr<worker::Entry> work(std::string name, const bool* ready = nullptr) {
        auto entry = step(std::move(name), ready);
        entry->kind = Kind::work;
        return entry;
    }
};

TEST_F(GateTest, CommandsThatArriveWhileTheDriverIsClosedKeepTheirOrder) {
    closed = true;
    EXPECT_FALSE(gate.open());
    gate.arrive(1, step("first"));
    gate.arrive(2, step("second"));
    gate.when_open([&] { log.push_back("action"); });
    EXPECT_FALSE(gate.run());
    EXPECT_EQ(waits_for(Reason::driver_closed), 1U);
    closed = false;
    EXPECT_FALSE(gate.open()) << "a later command must not overtake them";
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"action", "first", "second"}));
    EXPECT_TRUE(gate.open());
}

TEST_F(GateTest, SomeCommandsPassWhileTheDriverIsClosed) {
    closed = true;
    EXPECT_TRUE(gate.passes(Passage::needs_no_driver, 1));
    EXPECT_TRUE(gate.passes(Passage::gets_in, 1));
    EXPECT_TRUE(gate.passes(Passage::gets_in_first, 1));
    EXPECT_FALSE(gate.passes(Passage::none, 1));
    gate.arrive(1, step("launch"));
    EXPECT_TRUE(gate.passes(Passage::needs_no_driver, 1));
    EXPECT_FALSE(gate.passes(Passage::gets_in, 2)) << "the command may give that stream work";
    EXPECT_FALSE(gate.passes(Passage::gets_in_first, 1)) << "after the thread's own command";
    EXPECT_TRUE(gate.passes(Passage::gets_in_first, 2));
}

TEST_F(GateTest, ManyArrivalsThrottleTheSession) {
    closed = true;
    for (std::size_t i = 0; i < Gate::kMaxArrivals + 10; ++i) {
        gate.arrive(1, step("work"));
    }
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_EQ(notices[0], std::pair(CUstream{nullptr}, true));
    closed = false;
    gate.run();
    ASSERT_EQ(notices.size(), 2U);
    EXPECT_EQ(notices[1], std::pair(CUstream{nullptr}, false));
}

TEST_F(GateTest, NothingIsIssuedWhileTheDriverIsClosed) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    gate.queue(stream, work("work", &ready));
    ready = closed = true;
    gate.after_all([&] { log.push_back("barrier"); });
    EXPECT_FALSE(gate.run());
    EXPECT_EQ(waits_for(Reason::driver_closed), 1U);
    closed = false;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"work", "barrier"}));
}

TEST_F(GateTest, OnlyWorkWaitsForTheLease) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2);
    lease = false;
    EXPECT_FALSE(gate.enter(stream, Kind::work).has_value());
    EXPECT_TRUE(gate.enter(stream, Kind::order).has_value());
    gate.queue(stream, work("kernel"));
    auto record = step("record");
    record->kind = Kind::order;
    gate.put(other, std::move(record));
    EXPECT_EQ(log, Log{"record"});
    EXPECT_FALSE(gate.run());
    EXPECT_EQ(waits_for(Reason::lease), 1U);
    lease = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"record", "kernel"}));
}

TEST_F(GateTest, EveryReasonIsShown) {
    StreamState& busy = add_stream(1, false);
    StreamState& copies = add_stream(2, false);
    StreamState& waits = add_stream(3, false);
    while (may_issue(busy)) {
        scheduler.issued(busy);
    }
    bool never = false;
    gate.queue(busy, work("behind"));
    gate.queue(copies, work("copy", &never));
    auto after = work("after");
    after->after.push_back(gate.last_number());
    gate.queue(waits, std::move(after));
    EXPECT_FALSE(gate.run());
    EXPECT_EQ(waits_for(Reason::credit), 1U);
    EXPECT_EQ(waits_for(Reason::data), 1U);
    EXPECT_EQ(waits_for(Reason::order), 1U);
    EXPECT_EQ(codec::name_of(Reason::driver_call), "driver call");
}

// A change of an executable graph applies to the launches behind it only, whatever their streams.
TEST_F(GateTest, LaunchesAndChangesOfAnExecutableKeepTheirOrder) {
    StreamState& a = add_stream(1, false);
    StreamState& b = add_stream(2, false);
    Queue graph = {.limits = Queue::kOfGraph};
    bool ready = false;
    gate.queue(a, work("before", &ready));
    gate.queue(a, work("first launch"), &graph);
    gate.queue(graph, step("change"));
    gate.queue(b, work("second launch"), &graph);
    gate.queue(b, work("behind"));
    EXPECT_FALSE(gate.run());
    ready = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"before", "first launch", "change", "second launch", "behind"}));
    EXPECT_TRUE(graph.empty());
    EXPECT_FALSE(gate.queues_any());
}

TEST_F(GateTest, ManyChangesThrottleTheClientForTheExecutable) {
    StreamState& stream = add_stream(1);
    Queue graph = {.limits = Queue::kOfGraph};
    bool ready = false;
    gate.queue(stream, work("launch", &ready), &graph);
    for (std::size_t i = 0; i < Queue::kOfGraph.throttle; ++i) {
        gate.queue(graph, step("change"));
    }
    ASSERT_EQ(notices.size(), 1U);
    ready = true;
    gate.run();
    ASSERT_EQ(notices.size(), 2U);
    EXPECT_FALSE(notices[1].second);
}

TEST_F(GateTest, LaunchesOfAnEndedStreamLeaveTheirGraphsQueue) {
    StreamState& a = add_stream(1, false);
    StreamState& b = add_stream(2, false);
    Queue graph = {.limits = Queue::kOfGraph};
    bool never = false;
    gate.queue(a, work("stuck", &never), &graph);
    gate.queue(b, work("launch"), &graph);
    EXPECT_FALSE(gate.run());
    gate.forget(a, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"launch"});
}

// An entry whose work goes on in another keeps its place: later entries wait for both.
TEST_F(GateTest, WorkThatGoesOnKeepsItsPlace) {
    class First final : public worker::Entry {
      public:
        First(Gate& gate, std::unique_ptr<worker::Entry> rest) : gate_(gate), rest_(std::move(rest)) {
            kind = Kind::work;
        }
        Reason advance() override {
            gate_.go_on(std::move(*submission), std::move(rest_));
            return Reason::none;
        }

      private:
        Gate& gate_;
        std::unique_ptr<worker::Entry> rest_;
    };
    StreamState& stream = add_stream(1, false);
    StreamState& other = add_stream(2, false);
    bool gate_open = false, done = false;
    auto event = std::make_shared<worker::EventState>();
    event->context = &context;
    gate.queue(stream, work("before", &gate_open));
    auto first = std::make_unique<First>(gate, work("rest", &done));
    first->records_event(event);
    gate.queue(stream, std::move(first));
    gate.queue(stream, work("behind"));
    auto wait = work("wait");
    wait->after.push_back(event->queued_record);
    gate.queue(other, std::move(wait));
    gate.after_all([&] { log.push_back("barrier"); });
    gate_open = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"before"});
    EXPECT_NE(event->queued_record, 0U) << "the rest will record the event";
    done = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"before", "rest", "behind", "wait", "barrier"}));
    EXPECT_EQ(event->queued_record, 0U);
    EXPECT_EQ(stream.outstanding, 3U) << "each was accounted for once";
}

// A call that waits for a stream gives the GPU nothing. If it took part in the order of streams, work behind it would
// wait for streams that may wait for this very work.
TEST_F(GateTest, WaitsForAStreamHaveNoOrderAmongStreams) {
    StreamState& stuck = add_stream(1);
    StreamState& other = add_stream(2);
    bool ready = false, never = false;
    gate.queue(context.legacy, work("legacy", &ready));
    gate.queue(stuck, work("stuck", &never));
    gate.when_complete(context.legacy, note("complete"));
    gate.queue(other, work("other"));
    EXPECT_FALSE(gate.run());
    ready = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"legacy", "other"})) << "work of a blocking stream follows the legacy stream's work only";
}

TEST_F(GateTest, SubmissionAccountsForItsWork) {
    StreamState& stream = add_stream(1);
    {
        const std::optional<worker::Submission> submission = gate.enter(stream, Kind::work, 7);
        ASSERT_TRUE(submission);
        EXPECT_EQ(stream.outstanding, 0U);
    }
    EXPECT_EQ(stream.outstanding, 7U);
    std::optional<worker::Submission> several = gate.enter(stream, Kind::work);
    several->count();
    several->count();
    several->cancel();
    several.reset();
    EXPECT_EQ(stream.outstanding, 9U);
    std::optional<worker::Submission> given = gate.enter(stream, Kind::work);
    worker::Submission moved = std::move(*given);
    given.reset();
    EXPECT_EQ(stream.outstanding, 9U) << "the moved one accounts";
    moved.end();
    EXPECT_EQ(stream.outstanding, 10U);
}

// The event is destroyed while its record waits; a call that waits for the record is still answered.
TEST_F(GateTest, WaitForARecordKeepsItsEvent) {
    StreamState& stream = add_stream(1);
    auto event = std::make_shared<worker::EventState>();
    event->context = &context;
    event->driver = fake.recorded_event(stream.driver);
    bool ready = false;
    auto record = step("record", &ready);
    record->records_event(event);
    gate.queue(stream, std::move(record));
    gate.after_record(event, [this, event] { scheduler.when_recorded(*event, note("recorded")); });
    scheduler.retire(*event);
    ready = true;
    gate.run();
    EXPECT_TRUE(fake.alive(event->driver));
    fake.complete(stream.driver);
    poll_for_a_while();
    EXPECT_EQ(log, (Log{"record", "recorded"}));
    EXPECT_FALSE(fake.alive(event->driver));
}

}  // namespace
}  // namespace gpupool::test
