// What may be issued when: credit, the legacy stream's rules, and the order of held work.
#include "tests/unit/worker/scheduling/scheduler_fixture.h"

namespace gpupool::test {
namespace {

using worker::Scheduler;
using worker::StreamState;

TEST_F(SchedulerTest, StreamIsHeldWithoutCreditUntilWorkCompletes) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2);
    for (std::uint32_t i = 0; i < Scheduler::kCredit; ++i) {
        ASSERT_TRUE(may_issue(stream)) << i;
        scheduler.issued(stream);
    }
    EXPECT_FALSE(may_issue(stream));
    EXPECT_TRUE(may_issue(other)) << "one stream's credit is not another's";
    gate.queue(stream, step("late"));
    EXPECT_FALSE(gate.run());
    fake.complete(stream.driver, 1);
    EXPECT_TRUE(scheduler.poll());
    EXPECT_EQ(stream.outstanding, Scheduler::kCredit - Scheduler::kMarkEvery);
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, Log{"late"});
    EXPECT_TRUE(may_issue(stream));
}

TEST_F(SchedulerTest, DriverIsPolledBeforeWorkIsHeld) {
    worker::StreamState& stream = add_stream(1);
    while (may_issue(stream)) {
        scheduler.issued(stream);
    }
    ASSERT_FALSE(may_issue(stream));
    fake.complete(stream.driver, 1);
    EXPECT_TRUE(may_issue(stream)) << "without a poll() between";
    EXPECT_EQ(stream.outstanding, Scheduler::kCredit - Scheduler::kMarkEvery);
}

TEST_F(SchedulerTest, MarksAtRegularIntervals) {
    StreamState& stream = add_stream(1);
    for (int round = 0; round < 10; ++round) {
        for (std::uint32_t i = 0; i < Scheduler::kMarkEvery; ++i) {
            scheduler.issued(stream);
        }
        EXPECT_EQ(fake.records_on(stream.driver), static_cast<std::size_t>(round) + 1);
        fake.complete(stream.driver);
        scheduler.poll();
        EXPECT_EQ(stream.outstanding, 0u);
    }
    EXPECT_EQ(fake.events(), 0u);
    EXPECT_FALSE(scheduler.waiting());
}

// On a local GPU, a wait for a blocking stream does not wait for later work of the legacy stream.
TEST_F(SchedulerTest, BlockingStreamIsMarkedBeforeLegacyStreamWork) {
    StreamState& blocking = add_stream(1);
    StreamState& other = add_stream(2, false);
    scheduler.issued(blocking);
    scheduler.issued(other);
    EXPECT_TRUE(may_issue(context.legacy));
    scheduler.issued(context.legacy);
    EXPECT_EQ(fake.records_on(blocking.driver), 1u);
    EXPECT_EQ(fake.records_on(other.driver), 0u) << "the legacy stream does not wait for it";
    gate.when_complete(blocking, note("blocking"));
    EXPECT_EQ(fake.records_on(blocking.driver), 1u) << "the existing mark serves";
    fake.complete(blocking.driver);
    scheduler.poll();
    EXPECT_EQ(log, Log{"blocking"});
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(may_issue(context.legacy));
        scheduler.issued(context.legacy);
    }
    EXPECT_EQ(fake.records_on(blocking.driver), 1u) << "it has no new work";
    gate.when_complete(blocking, note("again"));
    scheduler.poll();
    EXPECT_EQ(log, (Log{"blocking", "again"}));
    EXPECT_EQ(fake.records_on(blocking.driver), 1u);
}

// With output expected, a mark has an event in front. An event recorded later would be behind the legacy stream's work.
TEST_F(SchedulerTest, BlockingStreamIsMarkedBeforeLegacyWorkWhenKernelsPrint) {
    scheduler.expect_output();
    StreamState& blocking = add_stream(1);
    scheduler.issued(blocking);
    EXPECT_TRUE(may_issue(context.legacy));
    scheduler.issued(context.legacy);
    EXPECT_EQ(fake.records_on(blocking.driver), 2u) << "an event and a word";
    gate.when_complete(blocking, note("blocking"));
    EXPECT_EQ(fake.records_on(blocking.driver), 2u);
    fake.complete(blocking.driver);
    scheduler.poll();
    EXPECT_EQ(log, Log{"blocking"});
    EXPECT_EQ(fake.event_synchronizations, 1u) << "the synchronization writes the output";
    gate.when_complete(blocking, note("again"));
    EXPECT_EQ(log, (Log{"blocking", "again"}));
    EXPECT_EQ(fake.records_on(blocking.driver), 2u) << "no output is pending";
}

// An issuer's mark has no event, so the legacy stream's work needs a further mark in front of it.
TEST_F(SchedulerTest, IssuersMarkDoesNotCoverKernelOutput) {
    scheduler.expect_output();
    StreamState& blocking = add_stream(1);
    scheduler.issued(blocking);
    gate.when_complete(blocking, note("first"));
    const std::size_t records = fake.records_on(blocking.driver);
    std::uint32_t number = 0;
    for (std::uint32_t i = 0; i < worker::Scheduler::kMarkEvery; ++i) {
        number = scheduler.issued_elsewhere(blocking);
    }
    EXPECT_NE(number, 0u);
    EXPECT_TRUE(may_issue(context.legacy));
    EXPECT_EQ(fake.records_on(blocking.driver), records + 2) << "an event and a word";
}

// An event's watch must not cause marks, even though the stream's completion has to wait for earlier notifications.
TEST_F(SchedulerTest, CompleteStreamNeedsNoMarkWhileAnEventIsWatched) {
    StreamState& blocking = add_stream(1);
    StreamState& other = add_stream(2, false);
    worker::EventState event;
    event.context = &context;
    event.driver = fake.recorded_event(other.driver);
    scheduler.when_recorded(event, note("event"), worker::Effect::notifies_of_event);
    gate.when_complete(blocking, note("blocking"));
    EXPECT_EQ(fake.records_on(blocking.driver), 0u);
    for (int i = 0; i < 4; ++i) {
        scheduler.poll(Scheduler::PollDepth::thorough);
    }
    EXPECT_EQ(log, Log{"blocking"});
    fake.complete(other.driver);
    scheduler.poll(Scheduler::PollDepth::thorough);
    EXPECT_EQ(log, (Log{"blocking", "event"}));
}

TEST_F(SchedulerTest, CapturingStreamIsNotMarked) {
    StreamState& stream = add_stream(1);
    stream.capturing = true;
    for (std::uint32_t i = 0; i < 2 * Scheduler::kCredit; ++i) {
        scheduler.issued(stream);
    }
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
    EXPECT_TRUE(may_issue(stream));
}

TEST_F(SchedulerTest, HeldWorkOfAStreamKeepsItsOrder) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    gate.queue(stream, step("first", &ready));
    gate.queue(stream, step("second"));
    EXPECT_FALSE(may_issue(stream)) << "nothing may overtake what is held";
    EXPECT_FALSE(gate.run());
    ready = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"first", "second"}));
    EXPECT_TRUE(may_issue(stream));
}

TEST_F(SchedulerTest, LegacyStreamWaitsOnlyForBlockingStreamsHeldWork) {
    StreamState& blocking = add_stream(1);
    StreamState& free = add_stream(2, false);
    bool free_ready = false, blocking_ready = false;
    gate.queue(free, step("free", &free_ready));
    EXPECT_TRUE(may_issue(context.legacy));
    gate.queue(blocking, step("blocking", &blocking_ready));
    EXPECT_FALSE(may_issue(context.legacy));
    gate.queue(context.legacy, step("legacy"));
    EXPECT_FALSE(gate.run());
    blocking_ready = true;
    EXPECT_TRUE(gate.run());
    EXPECT_EQ(log, (Log{"blocking", "legacy"}));
    EXPECT_TRUE(may_issue(context.legacy));
}

TEST_F(SchedulerTest, BlockingStreamsWaitForHeldWorkOfTheLegacyStream) {
    StreamState& blocking = add_stream(1);
    StreamState& free = add_stream(2, false);
    bool ready = false;
    gate.queue(context.legacy, step("legacy", &ready));
    EXPECT_FALSE(may_issue(blocking));
    EXPECT_TRUE(may_issue(free));
    gate.queue(blocking, step("blocking"));
    EXPECT_FALSE(gate.run());
    ready = true;
    gate.run();
    EXPECT_EQ(log, (Log{"legacy", "blocking"}));
}

// Work held in the order a1 (blocking), legacy, a2 (blocking): the middle one must run between the others.
TEST_F(SchedulerTest, LegacyWorkSeparatesEarlierAndLaterHeldWork) {
    StreamState& a = add_stream(1);
    StreamState& b = add_stream(2);
    bool ready = false;
    gate.queue(a, step("a1", &ready));
    gate.queue(context.legacy, step("legacy"));
    gate.queue(b, step("b1"));
    gate.queue(a, step("a2"));
    EXPECT_FALSE(gate.run());
    ready = true;
    gate.run();
    ASSERT_EQ(log.size(), 4u);
    EXPECT_EQ(log[0], "a1");
    EXPECT_EQ(log[1], "legacy");
}

TEST_F(SchedulerTest, OperationWaitsForItsDependencies) {
    StreamState& a = add_stream(1, false);
    StreamState& b = add_stream(2, false);
    bool ready = false;
    worker::EventState event;
    auto record = step("record", &ready);
    record->records = {&event};
    gate.queue(a, std::move(record));
    ASSERT_NE(event.queued_record, 0u);
    auto wait = step("wait");
    wait->after.push_back(event.queued_record);
    gate.queue(b, std::move(wait));
    gate.queue(b, step("behind"));
    EXPECT_FALSE(gate.run());
    EXPECT_TRUE(log.empty());
    EXPECT_NE(event.queued_record, 0u);
    ready = true;
    gate.run();
    EXPECT_EQ(log, (Log{"record", "wait", "behind"}));
    EXPECT_EQ(event.queued_record, 0u);
}

TEST_F(SchedulerTest, RerecordedEventBelongsToTheLaterRecord) {
    StreamState& a = add_stream(1, false);
    StreamState& b = add_stream(2, false);
    bool first = false, second = false;
    worker::EventState event;
    auto one = step("first", &first), two = step("second", &second);
    one->records = two->records = {&event};
    gate.queue(a, std::move(one));
    gate.queue(b, std::move(two));
    const std::uint64_t later = event.queued_record;
    first = true;
    gate.run();
    EXPECT_EQ(event.queued_record, later);
    second = true;
    gate.run();
    EXPECT_EQ(event.queued_record, 0u);
}

TEST_F(SchedulerTest, ClientIsThrottledAndReleasedOnce) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    gate.queue(stream, step("gate", &ready));
    for (std::size_t i = 1; i < worker::Queue::kOfStream.throttle + 100; ++i) {
        gate.queue(stream, std::make_unique<Step>(log, "work"));
    }
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_EQ(notices[0], std::pair(stream.client, true));
    ready = true;
    gate.run();
    ASSERT_EQ(notices.size(), 2u);
    EXPECT_EQ(notices[1], std::pair(stream.client, false));
    EXPECT_EQ(log.size(), worker::Queue::kOfStream.throttle + 100);
}

TEST_F(SchedulerTest, HeldBytesThrottleTheClient) {
    constexpr std::size_t kMiB = 1u << 20;
    StreamState& large = add_stream(1);
    StreamState& small = add_stream(2);
    bool ready = false, never = false;
    const auto hold = [&](StreamState& stream, std::size_t bytes, const bool* open) {
        auto operation = step("work", open);
        operation->bytes = bytes;
        gate.queue(stream, std::move(operation));
    };
    hold(small, 2 * kMiB, &never);
    while (notices.empty()) {
        hold(large, kMiB, &ready);
        ASSERT_LE(large.queue.bytes, worker::Gate::kBudgetBytes / worker::Gate::kLimitDivisor);
    }
    EXPECT_EQ(notices[0], std::pair(large.client, true));
    hold(small, kMiB, &never);
    EXPECT_EQ(notices.size(), 1u) << "it holds less than the per-stream limit";
    ready = true;
    gate.run();
    ASSERT_EQ(notices.size(), 2u);
    EXPECT_EQ(notices[1], std::pair(large.client, false));
}

// While a client obeys the throttling notices, all of its streams together stay near the budget, however many there
// are.
TEST_F(SchedulerTest, AllStreamsTogetherHoldAtMostTheBudget) {
    constexpr std::size_t kStreams = 3000, kBytes = 64u << 10;
    std::vector<StreamState*> streams;
    for (std::size_t i = 0; i < kStreams; ++i) {
        streams.push_back(&add_stream(i + 1, false));
    }
    StreamState& idle = add_stream(kStreams + 1, false);
    bool ready = false;
    std::size_t queued_bytes = 0, before = 1;
    while (queued_bytes != std::exchange(before, queued_bytes)) {
        for (StreamState* stream : streams) {
            if (!stream->queue.throttled) {
                auto operation = step("work", &ready);
                operation->bytes = kBytes;
                gate.queue(*stream, std::move(operation));
                queued_bytes += kBytes;
            }
        }
    }
    EXPECT_EQ(notices.size(), kStreams);
    EXPECT_LE(queued_bytes, worker::Gate::kBudgetBytes + kStreams * kBytes) << "plus one operation of each stream";
    EXPECT_GE(queued_bytes, worker::Gate::kBudgetBytes / 2);
    EXPECT_FALSE(idle.queue.throttled);
    EXPECT_TRUE(may_issue(idle)) << "the work that the others wait for may be sent";
    ready = true;
    gate.run();
    EXPECT_EQ(notices.size(), 2 * kStreams);
}

TEST_F(SchedulerTest, StreamIsReleasedWhenOthersFreeTheirShare) {
    StreamState& large = add_stream(1, false);
    StreamState& small = add_stream(2, false);
    bool ready = false, never = false;
    const auto hold = [&](StreamState& stream, std::size_t bytes, const bool* open) {
        auto operation = step("work", open);
        operation->bytes = bytes;
        gate.queue(stream, std::move(operation));
    };
    hold(large, worker::Gate::kBudgetBytes, &ready);  // was already on its way when the client was throttled
    hold(small, 1u << 20, &never);
    ASSERT_EQ(notices.size(), 2u);
    ready = true;
    gate.run();
    ASSERT_EQ(notices.size(), 4u);
    EXPECT_EQ(notices[3], std::pair(small.client, false)) << "although its own work still waits";
}

TEST_F(SchedulerTest, ClientIsReleasedWhenAStreamEnds) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2, false);
    bool never = false;
    auto operation = step("work", &never);
    operation->bytes = worker::Gate::kBudgetBytes;
    gate.queue(stream, std::move(operation));
    operation = step("work", &never);
    operation->bytes = 1u << 20;
    gate.queue(other, std::move(operation));
    ASSERT_EQ(notices.size(), 2u);
    gate.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_EQ(notices.size(), 4u);
    EXPECT_EQ(notices[2], std::pair(stream.client, false));
    EXPECT_EQ(notices[3], std::pair(other.client, false));
}

TEST_F(SchedulerTest, ForgettingAStreamEndsItsWaits) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2, false);
    bool never = false;
    scheduler.issued(stream);
    gate.when_complete(stream, note("waiter"));
    worker::EventState event;
    auto record = step("record", &never);
    record->records = {&event};
    gate.queue(stream, std::move(record));
    auto wait = step("wait");
    wait->after.push_back(event.queued_record);
    gate.queue(other, std::move(wait));
    gate.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(log, Log{"waiter!" + std::to_string(CUDA_ERROR_CONTEXT_IS_DESTROYED)});
    EXPECT_EQ(event.queued_record, 0u);
    gate.run();
    EXPECT_EQ(log.back(), "wait") << "a wait for forgotten work must end";
}

TEST_F(SchedulerTest, EntersAContextOnlyWhenItChanges) {
    worker::ContextState second;
    second.driver = reinterpret_cast<CUcontext>(0xd0);
    EXPECT_EQ(scheduler.enter(&context), CUDA_SUCCESS);
    EXPECT_EQ(fake.current, context.driver);
    fake.current = nullptr;
    EXPECT_EQ(scheduler.enter(&context), CUDA_SUCCESS);
    EXPECT_EQ(fake.current, nullptr) << "the context was current already";
    EXPECT_EQ(scheduler.enter(&second), CUDA_SUCCESS);
    EXPECT_EQ(fake.current, second.driver);
    EXPECT_EQ(scheduler.enter(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(fake.current, nullptr);
}

}  // namespace
}  // namespace gpupool::test
