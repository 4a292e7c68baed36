// Which streams capture, and which calls that forbids in which threads.
#include "client/core/scheduling/captures.h"

#include <gtest/gtest.h>

#include <thread>

#include "client/core/dispatch/thread.h"
#include "client/core/session/contexts.h"

namespace gpupool::test {
namespace {

using client::Captures;
using client::ContextState;
using client::StreamKey;

constexpr StreamKey kFirst{0x110, 0}, kSecond{0x120, 0}, kThird{0x130, 0};
const CUevent kEvent = reinterpret_cast<CUevent>(0x510), kOtherEvent = reinterpret_cast<CUevent>(0x520);

class CapturesTest : public testing::Test {
  protected:
    ~CapturesTest() override {
        client::this_thread().capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        client::this_thread().stack.clear();
    }
    // The result for another thread in this capture mode.
    CUresult elsewhere(CUstreamCaptureMode mode) {
        CUresult result = CUDA_SUCCESS;
        std::thread([&] {
            client::this_thread().capture_mode = mode;
            result = captures.before_unsafe_call();
            client::this_thread().capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        }).join();
        return result;
    }
    [[nodiscard]] bool invalid(const StreamKey& stream) const {
        const auto status = captures.find(stream);
        return status && status->invalid;
    }
    void begin(const StreamKey& stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL,
               bool blocking = true) {
        captures.begin(stream, blocking, &context, mode);
    }

    ContextState context, other_context;
    Captures captures;
};

// A primary context that was reset gets the same id again, and with it its default streams.
TEST_F(CapturesTest, DefaultStreamsOfAnEndedContextDoNotCapture) {
    context.id = 7;
    other_context.id = 8;
    begin(kFirst);
    captures.recorded(kEvent, kFirst);
    const StreamKey own = client::stream_key(2, other_context.id, 3), of_this = client::stream_key(2, context.id, 3);
    captures.join(own, true, *captures.capture_of(kEvent));
    captures.join(of_this, true, *captures.capture_of(kEvent));
    captures.ended(other_context);
    EXPECT_FALSE(captures.find(own));
    EXPECT_TRUE(captures.find(of_this));
    EXPECT_TRUE(captures.find(kFirst));
    EXPECT_TRUE(captures.end(kFirst));
    EXPECT_FALSE(captures.any());
}

TEST_F(CapturesTest, DefaultStreamsAreKeyedByContextAndThread) {
    auto& thread = client::this_thread();
    context.id = 7;
    other_context.id = 8;
    thread.stack = {&context};
    const StreamKey legacy = client::stream_key(nullptr);
    EXPECT_TRUE(client::is_legacy(legacy));
    EXPECT_EQ(client::stream_key(CU_STREAM_LEGACY), legacy);
    const StreamKey own = client::stream_key(CU_STREAM_PER_THREAD);
    EXPECT_FALSE(client::is_legacy(own));
    {
        const client::PerThreadDefault scope;
        EXPECT_EQ(client::stream_key(nullptr), own);
        EXPECT_EQ(client::stream_key(CU_STREAM_LEGACY), legacy);
    }
    StreamKey elsewhere;
    std::thread([&] {
        client::this_thread().stack = {&context};
        elsewhere = client::stream_key(CU_STREAM_PER_THREAD);
        client::this_thread().stack.clear();
    }).join();
    EXPECT_NE(elsewhere, own) << "each thread has its own";
    thread.stack = {&other_context};
    EXPECT_NE(client::stream_key(nullptr), legacy) << "each context has its own";
    const auto made = reinterpret_cast<CUstream>(0x110);
    const StreamKey named = client::stream_key(made);
    thread.stack.clear();
    EXPECT_EQ(client::stream_key(made), named) << "a handle is the same everywhere";
}

TEST_F(CapturesTest, EndWithAllOfTheirStreams) {
    EXPECT_FALSE(captures.any());
    begin(kFirst);
    const auto id = captures.find(kFirst)->id;
    captures.join(kSecond, true, id);
    EXPECT_EQ(captures.find(kSecond)->id, id);
    EXPECT_FALSE(captures.find(kThird));
    EXPECT_TRUE(captures.active(id));
    EXPECT_TRUE(captures.end(kSecond));
    EXPECT_FALSE(captures.any());
    EXPECT_FALSE(captures.find(kFirst));
    EXPECT_FALSE(captures.active(id));
    EXPECT_FALSE(captures.end(kFirst));
    begin(kFirst);
    EXPECT_NE(captures.find(kFirst)->id, id) << "a new capture is another one";
}

TEST_F(CapturesTest, StreamJoinsOneOngoingCapture) {
    begin(kFirst);
    begin(kSecond);
    const auto first = captures.find(kFirst)->id, second = captures.find(kSecond)->id;
    captures.join(kThird, true, first);
    captures.join(kThird, true, second);
    EXPECT_EQ(captures.find(kThird)->id, first);
    captures.end(kFirst);
    captures.join(kThird, true, first);
    EXPECT_FALSE(captures.find(kThird));
}

TEST_F(CapturesTest, EndWithTheirFirstStreamAndLoseOthers) {
    begin(kFirst);
    captures.join(kSecond, true, captures.find(kFirst)->id);
    captures.join(kThird, true, captures.find(kFirst)->id);
    captures.destroyed(kThird);
    EXPECT_FALSE(captures.find(kThird));
    EXPECT_TRUE(captures.find(kFirst));
    captures.destroyed(kFirst);
    EXPECT_FALSE(captures.any());
    EXPECT_FALSE(captures.find(kSecond));
    EXPECT_EQ(captures.before_context_wait(&context), CUDA_SUCCESS);
    captures.destroyed(kSecond);  // the stream captures no more
}

TEST_F(CapturesTest, EndWithTheirContext) {
    begin(kFirst);
    captures.begin(kThird, true, &other_context, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(kSecond);
    captures.ended(context);
    EXPECT_FALSE(captures.find(kFirst));
    EXPECT_FALSE(captures.find(kSecond));
    EXPECT_TRUE(captures.find(kThird));
    EXPECT_EQ(captures.before_context_wait(&context), CUDA_SUCCESS);
}

TEST_F(CapturesTest, LegacyStreamsWorkInvalidatesBlockingCaptures) {
    const StreamKey legacy{1, 0};
    begin(kFirst, CU_STREAM_CAPTURE_MODE_RELAXED, false);
    EXPECT_EQ(captures.before_work(legacy, &context), CUDA_SUCCESS);
    EXPECT_EQ(captures.before_work(kFirst, &context), CUDA_SUCCESS);
    begin(kSecond, CU_STREAM_CAPTURE_MODE_RELAXED, true);
    EXPECT_EQ(captures.before_work(legacy, &other_context), CUDA_SUCCESS);
    EXPECT_EQ(captures.before_work(kThird, &context), CUDA_SUCCESS) << "other streams are not affected";
    EXPECT_EQ(captures.before_work(legacy, &context), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(captures.before_work(kSecond, &context), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_FALSE(invalid(kFirst));
}

// A blocking stream that joins makes the capture one that the legacy stream would wait for.
TEST_F(CapturesTest, JoinedBlockingStreamMakesTheCaptureBlocking) {
    begin(kFirst, CU_STREAM_CAPTURE_MODE_RELAXED, false);
    captures.join(kSecond, true, captures.find(kFirst)->id);
    EXPECT_EQ(captures.before_work({1, 0}, &context), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_TRUE(invalid(kFirst));
}

TEST_F(CapturesTest, ModesForbidUnsafeCalls) {
    struct Case {
        CUstreamCaptureMode capture, thread;
        bool own_forbidden, others_forbidden;
    };
    constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL, kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                   kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    for (const Case& c : {Case{kGlobal, kGlobal, true, true},
                          {kGlobal, kLocal, true, false},
                          {kGlobal, kRelaxed, false, false},
                          {kLocal, kGlobal, true, false},
                          {kLocal, kLocal, true, false},
                          {kLocal, kRelaxed, false, false},
                          {kRelaxed, kGlobal, false, false},
                          {kRelaxed, kLocal, false, false}}) {
        begin(kFirst, c.capture);
        EXPECT_EQ(elsewhere(c.thread) != CUDA_SUCCESS, c.others_forbidden) << c.capture << ' ' << c.thread;
        EXPECT_EQ(invalid(kFirst), c.others_forbidden);
        captures.end(kFirst);
        begin(kFirst, c.capture);
        client::this_thread().capture_mode = c.thread;
        EXPECT_EQ(captures.before_unsafe_call() != CUDA_SUCCESS, c.own_forbidden) << c.capture << ' ' << c.thread;
        EXPECT_EQ(invalid(kFirst), c.own_forbidden);
        captures.end(kFirst);
        client::this_thread().capture_mode = kGlobal;
    }
    EXPECT_EQ(captures.before_unsafe_call(), CUDA_SUCCESS) << "nothing captures";
}

TEST_F(CapturesTest, OnlyTheFirstThreadMayEndANonRelaxedCapture) {
    begin(kFirst, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    begin(kSecond, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_TRUE(captures.may_end(kFirst));
    std::thread([&] {
        EXPECT_FALSE(captures.may_end(kFirst));
        EXPECT_TRUE(captures.may_end(kSecond));
    }).join();
}

TEST_F(CapturesTest, ForbiddenWorkInvalidatesTheCapture) {
    begin(kFirst);
    EXPECT_EQ(captures.refuse_if_capturing(kSecond), CUDA_SUCCESS);
    EXPECT_EQ(captures.before_context_wait(&other_context), CUDA_SUCCESS);
    EXPECT_FALSE(invalid(kFirst));
    EXPECT_EQ(captures.refuse_if_capturing(kFirst), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_TRUE(invalid(kFirst));
    captures.end(kFirst);
    begin(kFirst);
    EXPECT_EQ(captures.before_context_wait(&context), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_TRUE(invalid(kFirst));
}

TEST_F(CapturesTest, EventsKeepTheCaptureThatRecordedThem) {
    EXPECT_EQ(captures.refuse_if_captured(kEvent), CUDA_SUCCESS);
    begin(kFirst);
    const auto id = captures.find(kFirst)->id;
    captures.recorded(kEvent, kFirst);
    captures.recorded(kOtherEvent, kSecond);  // not captured
    EXPECT_EQ(captures.capture_of(kEvent), id);
    EXPECT_FALSE(captures.capture_of(kOtherEvent));
    EXPECT_EQ(captures.refuse_if_captured(kOtherEvent), CUDA_SUCCESS);
    EXPECT_FALSE(invalid(kFirst));
    EXPECT_EQ(captures.refuse_if_captured(kEvent), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_TRUE(invalid(kFirst));
    EXPECT_EQ(captures.refuse_if_captured(kEvent), CUDA_ERROR_INVALID_VALUE) << "the capture is invalid";
    captures.end(kFirst);
    EXPECT_EQ(captures.refuse_if_captured(kEvent), CUDA_ERROR_INVALID_VALUE) << "also after the capture has ended";
    captures.recorded(kEvent, kFirst);  // recorded again, outside of any capture
    EXPECT_FALSE(captures.capture_of(kEvent));
    EXPECT_FALSE(captures.any_events());
}

TEST_F(CapturesTest, DestroyedEventIsForgotten) {
    begin(kFirst);
    captures.recorded(kEvent, kFirst);
    EXPECT_TRUE(captures.any_events());
    captures.forget(kEvent);
    EXPECT_FALSE(captures.any_events());
    EXPECT_EQ(captures.refuse_if_captured(kEvent), CUDA_SUCCESS);
}

TEST_F(CapturesTest, DependenciesStayValidUntilTheStreamsNextQuery) {
    EXPECT_EQ(captures.dependencies_of(kFirst), nullptr);
    begin(kFirst);
    captures.join(kSecond, true, captures.find(kFirst)->id);
    Captures::Dependencies* const first = captures.dependencies_of(kFirst);
    ASSERT_NE(first, nullptr);
    first->nodes.resize(3);
    EXPECT_NE(captures.dependencies_of(kSecond), first) << "each stream has its own";
    EXPECT_EQ(captures.dependencies_of(kFirst), first);
    EXPECT_EQ(first->nodes.size(), 3u);
}

}  // namespace
}  // namespace gpupool::test
