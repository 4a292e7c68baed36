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
        ASSERT_TRUE(scheduler.may_issue(stream)) << i;
        scheduler.issued(stream);
    }
    EXPECT_FALSE(scheduler.may_issue(stream));
    EXPECT_TRUE(scheduler.may_issue(other)) << "one stream's credit is not another's";
    scheduler.hold(stream, step("late"));
    EXPECT_FALSE(scheduler.run_held());
    fake.complete(stream.driver, 1);
    EXPECT_TRUE(scheduler.poll());
    EXPECT_EQ(stream.outstanding, Scheduler::kCredit - Scheduler::kMarkEvery);
    EXPECT_TRUE(scheduler.run_held());
    EXPECT_EQ(log, Log{"late"});
    EXPECT_TRUE(scheduler.may_issue(stream));
}

TEST_F(SchedulerTest, DriverIsPolledBeforeWorkIsHeld) {
    worker::StreamState& stream = add_stream(1);
    while (scheduler.may_issue(stream)) {
        scheduler.issued(stream);
    }
    ASSERT_FALSE(scheduler.may_issue(stream));
    fake.complete(stream.driver, 1);
    EXPECT_TRUE(scheduler.may_issue(stream)) << "without a poll() between";
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
    EXPECT_TRUE(scheduler.may_issue(context.legacy));
    scheduler.issued(context.legacy);
    EXPECT_EQ(fake.records_on(blocking.driver), 1u);
    EXPECT_EQ(fake.records_on(other.driver), 0u) << "the legacy stream does not wait for it";
    scheduler.when_complete(blocking, note("blocking"));
    EXPECT_EQ(fake.records_on(blocking.driver), 1u) << "the existing mark serves";
    fake.complete(blocking.driver);
    scheduler.poll();
    EXPECT_EQ(log, Log{"blocking"});
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(scheduler.may_issue(context.legacy));
        scheduler.issued(context.legacy);
    }
    EXPECT_EQ(fake.records_on(blocking.driver), 1u) << "it has no new work";
    scheduler.when_complete(blocking, note("again"));
    scheduler.poll();
    EXPECT_EQ(log, (Log{"blocking", "again"}));
    EXPECT_EQ(fake.records_on(blocking.driver), 1u);
}

// With output expected, a mark has an event in front. An event recorded later would be behind the legacy stream's work.
TEST_F(SchedulerTest, BlockingStreamIsMarkedBeforeLegacyWorkWhenKernelsPrint) {
    scheduler.expect_output();
    StreamState& blocking = add_stream(1);
    scheduler.issued(blocking);
    EXPECT_TRUE(scheduler.may_issue(context.legacy));
    scheduler.issued(context.legacy);
    EXPECT_EQ(fake.records_on(blocking.driver), 2u) << "an event and a word";
    scheduler.when_complete(blocking, note("blocking"));
    EXPECT_EQ(fake.records_on(blocking.driver), 2u);
    fake.complete(blocking.driver);
    scheduler.poll();
    EXPECT_EQ(log, Log{"blocking"});
    EXPECT_EQ(fake.event_synchronizations, 1u) << "the synchronization writes the output";
    scheduler.when_complete(blocking, note("again"));
    EXPECT_EQ(log, (Log{"blocking", "again"}));
    EXPECT_EQ(fake.records_on(blocking.driver), 2u) << "no output is pending";
}

// An issuer's mark has no event, so the legacy stream's work needs a further mark in front of it.
TEST_F(SchedulerTest, IssuersMarkDoesNotCoverKernelOutput) {
    scheduler.expect_output();
    StreamState& blocking = add_stream(1);
    scheduler.issued(blocking);
    scheduler.when_complete(blocking, note("first"));
    const std::size_t records = fake.records_on(blocking.driver);
    std::uint32_t number = 0;
    for (std::uint32_t i = 0; i < worker::Scheduler::kMarkEvery; ++i) {
        number = scheduler.issued_elsewhere(blocking);
    }
    EXPECT_NE(number, 0u);
    EXPECT_TRUE(scheduler.may_issue(context.legacy));
    EXPECT_EQ(fake.records_on(blocking.driver), records + 2) << "an event and a word";
}

// A stream's held work already waits for the other streams' work, so operations behind it need not name that again.
TEST_F(SchedulerTest, OnlyTheFirstHeldOperationNamesItsDependencies) {
    constexpr std::size_t kBlocking = 3;
    bool ready = false;
    for (std::size_t i = 1; i <= kBlocking; ++i) {
        scheduler.hold(add_stream(i), step("blocking", &ready));
    }
    const auto hold_in_legacy = [&] {
        auto operation = step("legacy");
        const worker::Operation& held = *operation;
        scheduler.hold(context.legacy, std::move(operation));
        return held.after.size();
    };
    EXPECT_EQ(hold_in_legacy(), kBlocking);
    EXPECT_EQ(hold_in_legacy(), 0u);
    scheduler.hold(*context.streams.begin()->second, step("behind", &ready));
    EXPECT_EQ(hold_in_legacy(), 1u) << "only the new one";
    ready = true;
    EXPECT_TRUE(scheduler.run_held());
    EXPECT_EQ(log, (Log{"blocking", "blocking", "blocking", "legacy", "legacy", "behind", "legacy"}));
}

// An event's watch must not cause marks, even though the stream's completion has to wait for earlier notifications.
TEST_F(SchedulerTest, CompleteStreamNeedsNoMarkWhileAnEventIsWatched) {
    StreamState& blocking = add_stream(1);
    StreamState& other = add_stream(2, false);
    worker::EventState event;
    event.context = &context;
    event.driver = fake.recorded_event(other.driver);
    scheduler.when_recorded(event, note("event"), worker::Effect::notifies_of_event);
    scheduler.when_complete(blocking, note("blocking"));
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
    EXPECT_TRUE(scheduler.may_issue(stream));
}

TEST_F(SchedulerTest, HeldWorkOfAStreamKeepsItsOrder) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    scheduler.hold(stream, step("first", &ready));
    scheduler.hold(stream, step("second"));
    EXPECT_FALSE(scheduler.may_issue(stream)) << "nothing may overtake what is held";
    EXPECT_FALSE(scheduler.run_held());
    ready = true;
    EXPECT_TRUE(scheduler.run_held());
    EXPECT_EQ(log, (Log{"first", "second"}));
    EXPECT_TRUE(scheduler.may_issue(stream));
}

TEST_F(SchedulerTest, LegacyStreamWaitsOnlyForBlockingStreamsHeldWork) {
    StreamState& blocking = add_stream(1);
    StreamState& free = add_stream(2, false);
    bool free_ready = false, blocking_ready = false;
    scheduler.hold(free, step("free", &free_ready));
    EXPECT_TRUE(scheduler.may_issue(context.legacy));
    scheduler.hold(blocking, step("blocking", &blocking_ready));
    EXPECT_FALSE(scheduler.may_issue(context.legacy));
    scheduler.hold(context.legacy, step("legacy"));
    EXPECT_FALSE(scheduler.run_held());
    blocking_ready = true;
    EXPECT_TRUE(scheduler.run_held());
    EXPECT_EQ(log, (Log{"blocking", "legacy"}));
    EXPECT_TRUE(scheduler.may_issue(context.legacy));
}

TEST_F(SchedulerTest, BlockingStreamsWaitForHeldWorkOfTheLegacyStream) {
    StreamState& blocking = add_stream(1);
    StreamState& free = add_stream(2, false);
    bool ready = false;
    scheduler.hold(context.legacy, step("legacy", &ready));
    EXPECT_FALSE(scheduler.may_issue(blocking));
    EXPECT_TRUE(scheduler.may_issue(free));
    scheduler.hold(blocking, step("blocking"));
    EXPECT_FALSE(scheduler.run_held());
    ready = true;
    scheduler.run_held();
    EXPECT_EQ(log, (Log{"legacy", "blocking"}));
}

// Work held in the order a1 (blocking), legacy, a2 (blocking): the middle one must run between the others.
TEST_F(SchedulerTest, LegacyWorkSeparatesEarlierAndLaterHeldWork) {
    StreamState& a = add_stream(1);
    StreamState& b = add_stream(2);
    bool ready = false;
    scheduler.hold(a, step("a1", &ready));
    scheduler.hold(context.legacy, step("legacy"));
    scheduler.hold(b, step("b1"));
    scheduler.hold(a, step("a2"));
    EXPECT_FALSE(scheduler.run_held());
    ready = true;
    scheduler.run_held();
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
    scheduler.hold(a, std::move(record));
    ASSERT_NE(event.held_record, 0u);
    auto wait = step("wait");
    wait->after.push_back(event.held_record);
    scheduler.hold(b, std::move(wait));
    scheduler.hold(b, step("behind"));
    EXPECT_FALSE(scheduler.run_held());
    EXPECT_TRUE(log.empty());
    EXPECT_NE(event.held_record, 0u);
    ready = true;
    scheduler.run_held();
    EXPECT_EQ(log, (Log{"record", "wait", "behind"}));
    EXPECT_EQ(event.held_record, 0u);
}

TEST_F(SchedulerTest, RerecordedEventBelongsToTheLaterRecord) {
    StreamState& a = add_stream(1, false);
    StreamState& b = add_stream(2, false);
    bool first = false, second = false;
    worker::EventState event;
    auto one = step("first", &first), two = step("second", &second);
    one->records = two->records = {&event};
    scheduler.hold(a, std::move(one));
    scheduler.hold(b, std::move(two));
    const std::uint64_t later = event.held_record;
    first = true;
    scheduler.run_held();
    EXPECT_EQ(event.held_record, later);
    second = true;
    scheduler.run_held();
    EXPECT_EQ(event.held_record, 0u);
}

TEST_F(SchedulerTest, ClientIsThrottledAndReleasedOnce) {
    StreamState& stream = add_stream(1);
    bool ready = false;
    scheduler.hold(stream, step("gate", &ready));
    for (std::size_t i = 1; i < Scheduler::kThrottleAt + 100; ++i) {
        scheduler.hold(stream, std::make_unique<Step>(log, "work"));
    }
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_EQ(notices[0], std::pair(stream.client, true));
    ready = true;
    scheduler.run_held();
    ASSERT_EQ(notices.size(), 2u);
    EXPECT_EQ(notices[1], std::pair(stream.client, false));
    EXPECT_EQ(log.size(), Scheduler::kThrottleAt + 100);
}

TEST_F(SchedulerTest, HeldBytesThrottleTheClient) {
    constexpr std::size_t kMiB = 1u << 20;
    StreamState& large = add_stream(1);
    StreamState& small = add_stream(2);
    bool ready = false, never = false;
    const auto hold = [&](StreamState& stream, std::size_t bytes, const bool* gate) {
        auto operation = step("work", gate);
        operation->bytes = bytes;
        scheduler.hold(stream, std::move(operation));
    };
    hold(small, 2 * kMiB, &never);
    while (notices.empty()) {
        hold(large, kMiB, &ready);
        ASSERT_LE(large.held_bytes, Scheduler::kHeldBudgetBytes / Scheduler::kLimitDivisor);
    }
    EXPECT_EQ(notices[0], std::pair(large.client, true));
    hold(small, kMiB, &never);
    EXPECT_EQ(notices.size(), 1u) << "it holds less than the per-stream limit";
    ready = true;
    scheduler.run_held();
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
    std::size_t held_bytes = 0, before = 1;
    while (held_bytes != std::exchange(before, held_bytes)) {
        for (StreamState* stream : streams) {
            if (!stream->throttled) {
                auto operation = step("work", &ready);
                operation->bytes = kBytes;
                scheduler.hold(*stream, std::move(operation));
                held_bytes += kBytes;
            }
        }
    }
    EXPECT_EQ(notices.size(), kStreams);
    EXPECT_LE(held_bytes, Scheduler::kHeldBudgetBytes + kStreams * kBytes) << "plus one operation of each stream";
    EXPECT_GE(held_bytes, Scheduler::kHeldBudgetBytes / 2);
    EXPECT_FALSE(idle.throttled);
    EXPECT_TRUE(scheduler.may_issue(idle)) << "the work that the others wait for may be sent";
    ready = true;
    scheduler.run_held();
    EXPECT_EQ(notices.size(), 2 * kStreams);
}

TEST_F(SchedulerTest, StreamIsReleasedWhenOthersFreeTheirShare) {
    StreamState& large = add_stream(1, false);
    StreamState& small = add_stream(2, false);
    bool ready = false, never = false;
    const auto hold = [&](StreamState& stream, std::size_t bytes, const bool* gate) {
        auto operation = step("work", gate);
        operation->bytes = bytes;
        scheduler.hold(stream, std::move(operation));
    };
    hold(large, Scheduler::kHeldBudgetBytes, &ready);  // was already on its way when the client was throttled
    hold(small, 1u << 20, &never);
    ASSERT_EQ(notices.size(), 2u);
    ready = true;
    scheduler.run_held();
    ASSERT_EQ(notices.size(), 4u);
    EXPECT_EQ(notices[3], std::pair(small.client, false)) << "although its own work still waits";
}

TEST_F(SchedulerTest, ClientIsReleasedWhenAStreamEnds) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2, false);
    bool never = false;
    auto operation = step("work", &never);
    operation->bytes = Scheduler::kHeldBudgetBytes;
    scheduler.hold(stream, std::move(operation));
    operation = step("work", &never);
    operation->bytes = 1u << 20;
    scheduler.hold(other, std::move(operation));
    ASSERT_EQ(notices.size(), 2u);
    scheduler.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_EQ(notices.size(), 4u);
    EXPECT_EQ(notices[2], std::pair(stream.client, false));
    EXPECT_EQ(notices[3], std::pair(other.client, false));
}

TEST_F(SchedulerTest, ForgettingAStreamEndsItsWaits) {
    StreamState& stream = add_stream(1);
    StreamState& other = add_stream(2, false);
    bool never = false;
    scheduler.issued(stream);
    scheduler.when_complete(stream, note("waiter"));
    worker::EventState event;
    auto record = step("record", &never);
    record->records = {&event};
    scheduler.hold(stream, std::move(record));
    auto wait = step("wait");
    wait->after.push_back(event.held_record);
    scheduler.hold(other, std::move(wait));
    scheduler.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(log, Log{"waiter!" + std::to_string(CUDA_ERROR_CONTEXT_IS_DESTROYED)});
    EXPECT_EQ(event.held_record, 0u);
    scheduler.run_held();
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
