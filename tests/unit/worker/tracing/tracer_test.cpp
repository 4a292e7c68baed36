// What the worker's tracer records, over a driver whose GPU the test plays.

#include "server/worker/tracing/tracer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "server/worker/scheduling/scheduler.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/worker/fake_driver.h"

namespace gpupool::test {
namespace {

using codec::TraceKind;

class WorkerTracer : public testing::Test {
  protected:
    WorkerTracer() {
        context.driver = reinterpret_cast<CUcontext>(0xc0);
        stream.client = reinterpret_cast<CUstream>(0x10);
        stream.driver = FakeDriver::stream(1);
        stream.context = &context;
        // Consecutive events are a millisecond apart; the anchors' stream is never behind.
        fake.api.cuEventElapsedTime = [](float* ms, CUevent, CUevent) {
            *ms = (now_ms += 1);
            return CUDA_SUCCESS;
        };
        fake.before_query = [this](CUstream asked) {
            if (asked != stream.driver) {
                fake.complete(asked);
            }
        };
        now_ms = 0;
    }

    void take(codec::NoticeType type, const void* data, std::size_t bytes) {
        const auto* at = static_cast<const std::byte*>(data);
        if (type == codec::NoticeType::trace_name) {
            codec::TraceName header{};
            std::memcpy(&header, at, sizeof header);
            ASSERT_EQ(header.bytes, bytes - sizeof header);
            names.emplace_back(reinterpret_cast<const char*>(at + sizeof header), header.bytes);
            return;
        }
        std::memcpy(&dropped, at, sizeof dropped);
        const std::size_t count = (bytes - sizeof dropped) / sizeof(codec::TraceRecord);
        ASSERT_LE(count, codec::kMaxTraceRecords);
        const std::size_t before = records.size();
        records.resize(before + count);
        if (count != 0) {
            std::memcpy(records.data() + before, at + sizeof dropped, count * sizeof(codec::TraceRecord));
        }
    }
    void work(TraceKind kind, CUresult result = CUDA_SUCCESS, std::uint64_t bytes = 0) {
        worker::Tracer::Work traced(tracer, stream, kind, bytes);
        traced.end(result);
    }
    void send_all() {
        bool done = false;
        tracer.flush([&] { done = true; });
        for (int i = 0; i < 1000 && !done; ++i) {
            tracer.poll();
            clock.advance(std::chrono::milliseconds(1));
        }
        EXPECT_TRUE(done);
    }

    static float now_ms;
    ManualClock clock;
    FakeDriver fake;
    worker::ContextState context;
    worker::StreamState stream;
    std::vector<codec::TraceRecord> records;
    std::vector<std::string> names;
    codec::TraceHeader dropped{};
    worker::Tracer tracer{
        fake.api, [this](const worker::ContextState*) { fake.current = context.driver; },
        [this](codec::NoticeType type, const void* data, std::size_t bytes) { take(type, data, bytes); }, clock};
};
float WorkerTracer::now_ms = 0;

TEST_F(WorkerTracer, TouchesNoStreamWhenOff) {
    work(TraceKind::kernel);
    EXPECT_EQ(fake.events(), 0u);
    EXPECT_FALSE(tracer.waiting());
}

TEST_F(WorkerTracer, WorkIsReportedOnceComplete) {
    tracer.start();
    codec::CommandHeader header{};
    header.number = 42;
    header.opcode = 7;
    {
        const worker::Tracer::Issue issue(tracer, header, codec::Reason::none);
        work(TraceKind::copy_in, CUDA_SUCCESS, 4096);
    }
    EXPECT_EQ(fake.records_on(stream.driver), 2u);
    send_all();
    ASSERT_EQ(records.size(), 1u);  // only the command's record, since the GPU's work is not complete
    EXPECT_EQ(records[0].kind, TraceKind::command);
    fake.complete(stream.driver);
    send_all();
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[1].kind, TraceKind::copy_in);
    EXPECT_EQ(records[1].number, 42u);
    EXPECT_EQ(records[1].opcode, 7);
    EXPECT_EQ(records[1].bytes, 4096u);
    EXPECT_EQ(records[1].end_ns - records[1].begin_ns, 1'000'000u);
    ASSERT_EQ(names.size(), 1u);
    EXPECT_NE(names[0].find("stream 0x10"), std::string::npos) << names[0];
}

TEST_F(WorkerTracer, NoEventEntersACapture) {
    tracer.start();
    stream.capturing = true;
    work(TraceKind::kernel);
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
    stream.capturing = false;
    // Nor the legacy stream, where an event would invalidate another stream's capture.
    auto capturing = std::make_unique<worker::StreamState>();
    capturing->capturing = true;
    context.streams[reinterpret_cast<CUstream>(0x20)] = std::move(capturing);
    stream.legacy = true;
    work(TraceKind::kernel);
    EXPECT_EQ(fake.records_on(stream.driver), 0u);
}

TEST_F(WorkerTracer, FailedCallsAreNotRecorded) {
    tracer.start();
    work(TraceKind::kernel, CUDA_ERROR_INVALID_VALUE);
    fake.complete(stream.driver);
    send_all();
    EXPECT_TRUE(records.empty());
    EXPECT_FALSE(tracer.waiting());
}

TEST_F(WorkerTracer, WorkBeyondTheLimitIsOmittedAndCounted) {
    tracer.start();
    for (std::size_t i = 0; i < worker::Tracer::kMaxPending + 5; ++i) {
        work(TraceKind::kernel);
    }
    EXPECT_EQ(fake.records_on(stream.driver), 2 * worker::Tracer::kMaxPending);
    fake.complete(stream.driver);
    send_all();
    EXPECT_EQ(records.size(), worker::Tracer::kMaxPending);
    EXPECT_EQ(dropped.dropped_gpu_work, 5u);
}

TEST_F(WorkerTracer, EventsAreReused) {
    tracer.start();
    for (int i = 0; i < 100; ++i) {
        work(TraceKind::kernel);
        fake.complete(stream.driver);
        send_all();
    }
    EXPECT_EQ(records.size(), 100u);
    EXPECT_LE(fake.events(), 4u);
    for (std::size_t i = 1; i < records.size(); ++i) {
        EXPECT_GE(records[i].begin_ns, records[i - 1].end_ns);  // in stream order
    }
}

TEST_F(WorkerTracer, BrokenContextIsNoLongerTraced) {
    tracer.start();
    work(TraceKind::kernel);
    fake.complete(stream.driver);
    fake.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    send_all();
    EXPECT_TRUE(records.empty());
    EXPECT_EQ(dropped.dropped_gpu_work, 1u);
    const std::size_t before = fake.records_on(stream.driver);
    work(TraceKind::kernel);
    EXPECT_EQ(fake.records_on(stream.driver), before);
}

TEST_F(WorkerTracer, ForgottenStreamOrContextLeavesNothingPending) {
    tracer.start();
    work(TraceKind::kernel);
    tracer.forget(stream);
    send_all();
    EXPECT_FALSE(tracer.waiting());
    work(TraceKind::kernel);
    tracer.forget(context);
    send_all();
    EXPECT_FALSE(tracer.waiting());
    EXPECT_EQ(dropped.dropped_gpu_work, 2u);
}

}  // namespace
}  // namespace gpupool::test
