// Waiting without blocking: when_complete, when_recorded, after_all, and how errors propagate.
#include <algorithm>

#include "tests/unit/worker/scheduling/scheduler_fixture.h"

namespace gpupool::test {
namespace {

using worker::Scheduler;
using worker::StreamState;

TEST_F(SchedulerTest, WhenCompleteWaitsForTheStreamsWork) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    gate.when_complete(stream, note("first"));
    scheduler.issued(stream);
    gate.when_complete(stream, note("second"));
    EXPECT_FALSE(scheduler.poll());
    fake.complete(stream.driver, 1);
    EXPECT_TRUE(scheduler.poll());
    EXPECT_EQ(log, Log{"first"});
    fake.complete(stream.driver, 1);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"first", "second"}));
    EXPECT_EQ(stream.outstanding, 0u);
    EXPECT_FALSE(scheduler.waiting());
}

TEST_F(SchedulerTest, WhenCompleteWaitsForHeldWork) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    gate.queue(stream, step("work", &ready));
    gate.when_complete(stream, note("done"));
    scheduler.poll();
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
    ready = true;
    gate.run();
    EXPECT_EQ(log, Log{"work"});
    EXPECT_FALSE(scheduler.poll());
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"work", "done"}));
}

TEST_F(SchedulerTest, LegacyStreamIsMarkedOnAHelperStream) {
    scheduler.issued(context.legacy);
    gate.when_complete(context.legacy, note("done"));
    ASSERT_NE(context.helper, nullptr);
    EXPECT_EQ(fake.records_on(nullptr), 0u) << "an event on the legacy stream would stall the other streams";
    EXPECT_EQ(fake.records_on(context.helper), 1u);
    fake.complete(context.helper);
    scheduler.poll();
    EXPECT_EQ(log, Log{"done"});
}

TEST_F(SchedulerTest, ContextIsCompleteWhenAllItsStreamsAre) {
    StreamState& a = add_stream(1);
    StreamState& b = add_stream(2, false);
    add_stream(3);  // never used, so the context's completion does not depend on it
    scheduler.issued(a);
    scheduler.issued(b);
    gate.when_complete(context, note("all"));
    gate.when_blocking_complete(context, note("blocking"));
    fake.complete(a.driver);
    fake.complete(context.helper);
    scheduler.poll();
    EXPECT_EQ(log, Log{"blocking"});
    fake.complete(b.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"blocking", "all"}));
    EXPECT_EQ(fake.records_on(FakeDriver::stream(3)), 0u);
}

TEST_F(SchedulerTest, FirstErrorOfAContextsStreamsIsReportedOnce) {
    StreamState& a = add_stream(1);
    scheduler.issued(a);
    gate.when_complete(context, note("all"));
    fake.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    fake.complete(a.driver);
    fake.complete(context.helper);
    poll_for_a_while();
    EXPECT_EQ(log, Log{"all!" + std::to_string(CUDA_ERROR_ILLEGAL_ADDRESS)});
}

TEST_F(SchedulerTest, FailedMarkIsReportedAtOnceAndReturnsItsCredit) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    scheduler.issued(stream);
    fake.record_result = CUDA_ERROR_LAUNCH_FAILED;
    gate.when_complete(stream, note("done"));
    EXPECT_EQ(log, Log{"done!" + std::to_string(CUDA_ERROR_LAUNCH_FAILED)});
    EXPECT_EQ(stream.outstanding, 0u);
    EXPECT_FALSE(scheduler.waiting());
}

TEST_F(SchedulerTest, WhenRecordedWaitsForTheEventsRecord) {
    StreamState& stream = add_stream(1);
    worker::EventState event;
    event.driver = fake.recorded_event(stream.driver);
    scheduler.when_recorded(event, note("one"));
    scheduler.when_recorded(event, note("two"));
    EXPECT_EQ(event.waiters, 2u);
    EXPECT_TRUE(scheduler.waiting());
    EXPECT_FALSE(scheduler.poll());
    fake.complete(stream.driver);
    EXPECT_TRUE(scheduler.poll());
    EXPECT_EQ(log, (Log{"one", "two"}));
    EXPECT_EQ(event.waiters, 0u);
    EXPECT_TRUE(fake.alive(event.driver)) << "the application's event is its own";
}

TEST_F(SchedulerTest, RetiredEventLivesUntilItsLastWaiterIsDone) {
    StreamState& stream = add_stream(1);
    worker::EventState event;
    const CUevent old = event.driver = fake.recorded_event(stream.driver);
    scheduler.when_recorded(event, note("one"));
    scheduler.when_recorded(event, note("two"));
    scheduler.retire(event);
    event.driver = fake.recorded_event(FakeDriver::stream(9));
    EXPECT_EQ(event.waiters, 0u);
    EXPECT_FALSE(scheduler.poll());
    EXPECT_TRUE(fake.alive(old));
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"one", "two"}));
    EXPECT_FALSE(fake.alive(old));
    EXPECT_TRUE(fake.alive(event.driver));
    EXPECT_EQ(event.waiters, 0u);
}

// The event's context is destroyed while a stream of another context still holds a command that names it.
TEST_F(SchedulerTest, ContextsEndFailsWaitsForItsEvents) {
    StreamState& stream = add_stream(1);
    worker::ContextState other;
    worker::Objects objects;
    auto event = std::make_shared<worker::EventState>();
    event->context = &other;
    event->driver = fake.recorded_event(FakeDriver::stream(9));
    objects.events[reinterpret_cast<CUevent>(0x10)] = event;
    bool ready = false;
    auto record = step("record", &ready);
    record->records_event(event);
    gate.queue(stream, std::move(record));
    gate.after_record(event, [this, state = event.get()] {
        scheduler.when_recorded(*state, note("event"), worker::Effect::notifies_of_event);
    });
    gate.forget_events(objects, other);
    EXPECT_TRUE(objects.events.empty());
    event.reset();
    ready = true;
    EXPECT_TRUE(gate.run());
    for (int i = 0; i < 5; ++i) {
        scheduler.poll();
    }
    EXPECT_EQ(log, (Log{"record", "event!" + std::to_string(CUDA_ERROR_CONTEXT_IS_DESTROYED)}));
}

// The second stream waits for the first on the GPU. Both complete after the first was polled.
TEST_F(SchedulerTest, DataPrecedesTheAnswerOfADependentStream) {
    StreamState& first = add_stream(1);
    StreamState& second = add_stream(2);
    worker::EventState event;
    event.driver = fake.recorded_event(second.driver);
    scheduler.mark(first, note("data"), 0, worker::Effect::sends_data);
    scheduler.mark(second, note("answer"));
    scheduler.when_recorded(event, note("event"), worker::Effect::notifies_of_event);
    fake.before_query = [&](CUstream stream) {
        if (stream == second.driver) {
            fake.complete(first.driver);
            fake.complete(second.driver);
        }
    };
    EXPECT_TRUE(scheduler.poll());
    EXPECT_TRUE(scheduler.waiting());
    scheduler.poll();
    scheduler.poll();
    scheduler.poll();
    EXPECT_EQ(log, (Log{"data", "event", "answer"}));
    EXPECT_FALSE(scheduler.waiting());
}

// The stream's completion is detected before that of an event on it, which was polled earlier.
TEST_F(SchedulerTest, EventsAreReportedBeforeTheirStreamsAnswer) {
    StreamState& stream = add_stream(1);
    worker::EventState event;
    event.driver = fake.recorded_event(stream.driver);
    scheduler.mark(stream, note("answer"));
    scheduler.when_recorded(event, note("event"), worker::Effect::notifies_of_event);
    fake.complete(stream.driver);
    scheduler.flush_completions();
    EXPECT_EQ(log, Log{"event"});
    scheduler.poll();
    scheduler.poll();
    EXPECT_EQ(log, (Log{"event", "answer"}));
}

TEST_F(SchedulerTest, DetectedCompletionIsReportedWhenItsStreamIsForgotten) {
    StreamState& first = add_stream(1);
    StreamState& second = add_stream(2);
    scheduler.mark(first, note("data"), 0, worker::Effect::sends_data);
    scheduler.mark(second, note("answer"));
    fake.complete(second.driver);
    scheduler.poll();
    EXPECT_EQ(log, Log{}) << "data may precede it";
    gate.forget(second, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(log, Log{"answer"});
}

TEST_F(SchedulerTest, WhenIssuedRunsInOrderBehindHeldWork) {
    StreamState& stream = add_stream(1);
    gate.after_all([&] { log.push_back("at once"); });
    EXPECT_EQ(log, Log{"at once"});
    bool first = false, second = false;
    gate.queue(stream, step("first", &first));
    gate.after_all([&] { log.push_back("after first"); });
    gate.queue(stream, step("second", &second));
    gate.after_all([&] { log.push_back("after second"); });
    EXPECT_FALSE(gate.run());
    first = true;
    gate.run();
    EXPECT_EQ(log, (Log{"at once", "first", "after first"}));
    second = true;
    gate.run();
    EXPECT_EQ(log, (Log{"at once", "first", "after first", "second", "after second"}));
}

TEST_F(SchedulerTest, ActionMayAddActions) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    gate.when_complete(stream, [&](CUresult) {
        log.push_back("first");
        gate.when_complete(stream, note("second"));
    });
    fake.complete(stream.driver);
    scheduler.poll();
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"first", "second"}));
}

TEST_F(SchedulerTest, DeadContextIsDetectedWithoutAMark) {
    StreamState& a = add_stream(1);
    StreamState& b = add_stream(2);
    scheduler.issued(a);
    scheduler.issued(b);
    gate.when_complete(a, note("a"));
    gate.when_complete(b, note("b"));
    gate.when_complete(a, note("later"));
    fake.query_result = CUDA_ERROR_LAUNCH_FAILED;
    fake.complete(a.driver);
    fake.complete(b.driver);
    poll_for_a_while();
    std::sort(log.begin(), log.end());
    const std::string error = "!" + std::to_string(CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(log, (Log{"a" + error, "b" + error, "later" + error}));
    EXPECT_FALSE(scheduler.waiting());
    log.clear();
    fake.record_result = CUDA_ERROR_LAUNCH_FAILED;
    gate.when_complete(a, note("again"));
    EXPECT_EQ(log, Log{"again" + error}) << "nothing is outstanding, but the context is dead";
}

// The stream has outstanding work, then becomes one that the driver must not be queried for.
class SchedulerQueries : public SchedulerTest {
  protected:
    void expect_not_asked(StreamState& stream, bool StreamState::*becomes);
};

void SchedulerQueries::expect_not_asked(StreamState& stream, bool StreamState::*becomes) {
    bool completed = false;
    scheduler.issued(stream);
    gate.when_complete(stream, [&](CUresult result) { completed = result == CUDA_SUCCESS; });
    stream.*becomes = true;
    poll_for_a_while();
    EXPECT_EQ(fake.stream_queries, 0u);
    EXPECT_FALSE(completed);
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_TRUE(completed);
}

TEST_F(SchedulerQueries, CapturingStreamIsNotQueried) {  // the driver would end the capture
    expect_not_asked(add_stream(1), &StreamState::capturing);
}

TEST_F(SchedulerTest, MarksHaveAnEventOnlyWhenKernelsMayPrint) {
    StreamState& stream = add_stream(1);
    gate.when_complete(stream, note("silent"));
    EXPECT_EQ(fake.events(), 0u);
    scheduler.expect_output();
    scheduler.mark(
        stream, [](CUresult) {}, 0, worker::Effect::ours);
    EXPECT_EQ(fake.events(), 0u) << "no wait needs it";
    for (int i = 0; i < 3; ++i) {
        scheduler.issued(stream);
        gate.when_complete(stream, note("printed"));
        fake.complete(stream.driver);
        scheduler.poll();
    }
    EXPECT_EQ(fake.events(), 1u) << "the event is reused";
    EXPECT_EQ(fake.event_synchronizations, 3u);
    EXPECT_EQ(log, (Log{"silent", "printed", "printed", "printed"}));
}

TEST_F(SchedulerTest, WaitForTheLastMarkNeedsNoOther) {
    StreamState& stream = add_stream(1);
    scheduler.mark(stream, note("data"), 0, worker::Effect::sends_data);
    scheduler.at_mark(stream, note("answer"));
    EXPECT_EQ(fake.records_on(stream.driver), 1u);
    scheduler.poll();
    EXPECT_EQ(log, Log{});
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"data", "answer"}));
    scheduler.at_mark(stream, note("alone"));
    scheduler.poll();
    EXPECT_EQ(log, (Log{"data", "answer", "alone"})) << "there is no work behind the last mark";
    EXPECT_EQ(fake.records_on(stream.driver), 1u);
}

TEST_F(SchedulerTest, FailedMarkIsNotWaitedFor) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    fake.record_result = CUDA_ERROR_LAUNCH_FAILED;
    EXPECT_EQ(scheduler.mark(stream, note("data"), 0, worker::Effect::sends_data), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(log, Log{"data!" + std::to_string(CUDA_ERROR_LAUNCH_FAILED)});
    gate.when_complete(stream, note("later"));
    EXPECT_EQ(log.back(), "later!" + std::to_string(CUDA_ERROR_LAUNCH_FAILED)) << "although nothing is outstanding";
}

TEST_F(SchedulerTest, StreamWithNothingOutstandingIsComplete) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2);
    gate.when_complete(context, note("nothing yet"));
    EXPECT_EQ(log, Log{"nothing yet"});
    scheduler.issued(stream);
    gate.when_complete(stream, note("work"));
    gate.when_complete(other, note("other"));
    EXPECT_EQ(log, (Log{"nothing yet", "other"}));
    fake.complete(stream.driver);
    scheduler.poll();
    const unsigned marks = fake.records_on(stream.driver);
    gate.when_complete(stream, note("again"));
    gate.when_complete(context, note("context"));
    EXPECT_EQ(log, (Log{"nothing yet", "other", "work", "again", "context"}));
    EXPECT_EQ(fake.records_on(stream.driver), marks);
    EXPECT_FALSE(stream.touched);
}

TEST_F(SchedulerTest, IdleStreamsAnswerFollowsTheDataOfOthers) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2);
    scheduler.issued(other);
    scheduler.mark(other, note("data"), 0, worker::Effect::sends_data);
    gate.when_complete(stream, note("idle"));
    EXPECT_EQ(log, Log{}) << "it may have waited for the other stream";
    fake.complete(other.driver);
    fake.complete(stream.driver);
    scheduler.poll();
    scheduler.poll();
    EXPECT_EQ(log, (Log{"data", "idle"}));
}

TEST_F(SchedulerTest, AtMarkMarksLaterWork) {
    StreamState& stream = add_stream(1);
    scheduler.mark(stream, note("first"));
    scheduler.issued(stream);
    scheduler.at_mark(stream, note("second"));
    fake.complete(stream.driver, 1);
    scheduler.poll();
    EXPECT_EQ(log, Log{"first"});
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"first", "second"}));
}

TEST_F(SchedulerTest, DestroyedStreamIsComplete) {
    StreamState& stream = add_stream(1);
    scheduler.issued(stream);
    stream.gone = true;
    gate.when_complete(context, note("context"));
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
    fake.complete(context.helper);
    scheduler.poll();
    EXPECT_EQ(log, Log{"context"});
}

TEST_F(SchedulerQueries, DestroyedStreamIsNotQueried) {
    expect_not_asked(add_stream(1), &StreamState::gone);
}

TEST_F(SchedulerTest, MarkedWorkIsNotMarkedAgain) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2);
    const auto records = [&] { return fake.records_on(stream.driver) + fake.records_on(context.helper); };
    scheduler.issued(stream);
    scheduler.mark(stream, note("data"), 0, worker::Effect::sends_data);
    gate.when_complete(stream, note("stream"));
    EXPECT_EQ(records(), 1u);
    gate.when_complete(context.legacy, note("legacy"));
    EXPECT_EQ(records(), 2u);
    gate.when_complete(context.legacy, note("legacy"));
    EXPECT_EQ(records(), 2u);
    // The legacy stream also waits for the other streams, and that mark did not.
    ASSERT_TRUE(may_issue(other));
    gate.when_complete(context.legacy, note("legacy later"));
    EXPECT_EQ(records(), 3u);
    fake.complete(stream.driver);
    fake.complete(context.helper);
    scheduler.poll();
    scheduler.poll();
    std::sort(log.begin() + 1, log.end());
    EXPECT_EQ(log, (Log{"data", "legacy", "legacy", "legacy later", "stream"}));
}

TEST_F(SchedulerTest, IssuersMarkTheirWork) {
    StreamState& stream = add_stream(1);
    for (std::uint32_t i = 1; i < Scheduler::kMarkEvery; ++i) {
        ASSERT_TRUE(Scheduler::may_issue_elsewhere(stream));
        ASSERT_EQ(scheduler.issued_elsewhere(stream), 0u);
    }
    EXPECT_FALSE(Scheduler::may_issue_elsewhere(stream)) << "the stream has no mark word yet";
    scheduler.issued(stream);
    for (std::uint32_t i = 1; i < Scheduler::kMarkEvery; ++i) {
        ASSERT_EQ(scheduler.issued_elsewhere(stream), 0u);
    }
    ASSERT_TRUE(Scheduler::may_issue_elsewhere(stream));
    const std::uint32_t number = scheduler.issued_elsewhere(stream);
    EXPECT_EQ(number, 2u);
    EXPECT_EQ(stream.outstanding, 2 * Scheduler::kMarkEvery);
    fake.complete(stream.driver);
    fake.recorded_event(stream.driver);  // the driver now has more work than was marked
    scheduler.poll();
    EXPECT_EQ(stream.outstanding, Scheduler::kMarkEvery) << "the other thread has not written it yet";
    driver::call(TestPermit(), fake.api.cuStreamWriteValue32_v2, stream.driver, stream.marks.device_word, number, 0u);
    fake.complete(stream.driver);
    scheduler.poll();
    EXPECT_EQ(stream.outstanding, 0u);
}

TEST_F(SchedulerTest, MarkWordOfAnEndedStreamIsReused) {
    StreamState& old = add_stream(1);
    scheduler.issued(old);
    gate.when_complete(old, note("old"));
    fake.complete(old.driver);
    scheduler.poll();
    const std::uint32_t* const word = old.marks.word;
    gate.forget(old, CUDA_SUCCESS);
    StreamState& next = add_stream(2);
    scheduler.issued(next);
    gate.when_complete(next, note("next"));
    EXPECT_EQ(next.marks.word, word);
    scheduler.poll();
    EXPECT_EQ(log, Log{"old"}) << "the old stream's value must not complete the next one's";
    fake.complete(next.driver);
    scheduler.poll();
    EXPECT_EQ(log, (Log{"old", "next"}));
}

}  // namespace
}  // namespace gpupool::test
