// The streams whose work the worker has throttled: each separately, including the default streams of contexts and
// threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/waiting.h"
#include "tests/unit/client/server.h"

namespace gpupool::test {
namespace {

using client::ContextState;
using codec::NoticeType;
using codec::StreamThrottleNotice;

constexpr std::uint64_t kLegacy = 1, kOwn = 2;

class ThrottledStreamsOfASession : public testing::Test {
  protected:
    ThrottledStreamsOfASession() {
        thread_.stack = {&first_};
        thread_.per_thread_default = false;
    }
    ~ThrottledStreamsOfASession() override {
        thread_.stack.clear();
        thread_.per_thread_default = false;
    }
    void say(std::uint64_t stream, const ContextState& context, bool throttled) {
        server_.send(notice(NoticeType::throttle, StreamThrottleNotice{stream, codec::to_wire(context.handle),
                                                                       thread_.index, throttled ? 1u : 0u}));
    }
    // `stream` as the calling thread sees it.
    [[nodiscard]] bool throttled(CUstream stream) const {
        return server_.session->throttled_streams.contains(client::stream_key(stream));
    }

    Server& server_ = Server::fresh();
    ContextState& first_ = server_.session->contexts.add(0, 0, false);
    ContextState& second_ = server_.session->contexts.add(0, 0, false);
    client::ThreadState& thread_ = client::this_thread();
};

TEST_F(ThrottledStreamsOfASession, LegacyStreamIsKeyedByContext) {
    say(kLegacy, first_, true);
    EXPECT_TRUE(throttled(nullptr));
    EXPECT_TRUE(throttled(CU_STREAM_LEGACY));
    EXPECT_FALSE(throttled(CU_STREAM_PER_THREAD));
    thread_.per_thread_default = true;
    EXPECT_FALSE(throttled(nullptr)) << "a call of the per-thread variant";
    EXPECT_TRUE(throttled(CU_STREAM_LEGACY));
    thread_.per_thread_default = false;
    thread_.stack = {&second_};
    EXPECT_FALSE(throttled(nullptr)) << "another context's stream";
    say(kLegacy, second_, true);
    say(kLegacy, first_, false);
    EXPECT_TRUE(throttled(nullptr)) << "the other context's stream is still throttled";
    say(kLegacy, second_, false);
    EXPECT_FALSE(server_.session->throttled_streams.any());
    EXPECT_FALSE(server_.session->lost());
}

TEST_F(ThrottledStreamsOfASession, PerThreadStreamIsKeyedByThreadAndContext) {
    say(kOwn, first_, true);
    EXPECT_TRUE(throttled(CU_STREAM_PER_THREAD));
    EXPECT_FALSE(throttled(nullptr));
    thread_.per_thread_default = true;
    EXPECT_TRUE(throttled(nullptr)) << "a call of the per-thread variant";
    std::thread([&] {
        client::this_thread().stack = {&first_};
        EXPECT_FALSE(throttled(CU_STREAM_PER_THREAD)) << "another thread's stream";
        client::this_thread().stack.clear();
    }).join();
    thread_.stack = {&second_};
    EXPECT_FALSE(throttled(nullptr)) << "another context's stream";
    thread_.stack = {&first_};
    say(kOwn, first_, false);
    EXPECT_FALSE(throttled(nullptr));
}

TEST_F(ThrottledStreamsOfASession, OtherStreamsAreKeyedByHandle) {
    const auto stream = reinterpret_cast<CUstream>(0x110);
    say(0x110, first_, true);
    thread_.stack = {&second_};
    thread_.per_thread_default = true;
    EXPECT_TRUE(throttled(stream));
    EXPECT_FALSE(throttled(nullptr));
    say(0x110, first_, false);
    EXPECT_FALSE(throttled(stream));
}

TEST_F(ThrottledStreamsOfASession, SenderBlocksUntilReleaseOrTheSessionsEnd) {
    for (const bool released : {true, false}) {
        say(kLegacy, first_, true);
        std::atomic<bool> back{false};
        std::thread waits([&] {
            client::this_thread().stack = {&first_};
            server_.session->wait_for_stream(nullptr);
            EXPECT_TRUE(back);
            client::this_thread().stack.clear();
        });
        std::thread([&] {  // threads with other streams continue
            client::this_thread().stack = {&second_};
            server_.session->wait_for_stream(nullptr);
            client::this_thread().stack.clear();
        })
            .join();
        back = true;
        released ? say(kLegacy, first_, false) : server_.session->violation("the end of the test");
        waits.join();
    }
}

TEST(ThrottledStreams, EverySenderBlocksWhileAllAreThrottled) {
    client::ThrottledStreams streams;
    const client::StreamKey one{0x1000, 0};
    EXPECT_FALSE(streams.all());
    streams.wait_for_all();  // returns at once
    for (const bool ends : {false, true}) {
        streams.set_all(true);
        EXPECT_TRUE(streams.all() && streams.any());
        std::atomic<int> waiting{2};
        ObservedThread any_call([&] { streams.wait_for_all(), --waiting; });
        ObservedThread work([&] { streams.wait(one), --waiting; });
        EXPECT_TRUE(any_call.blocks());
        EXPECT_TRUE(work.blocks());
        EXPECT_TRUE(streams.set(one, true));  // wakes both, and releases neither
        EXPECT_TRUE(any_call.blocks());
        EXPECT_TRUE(work.blocks());
        EXPECT_EQ(waiting, 2);
        if (ends) {
            streams.end();
        } else {
            streams.set_all(false);
        }
        any_call.join();
        EXPECT_TRUE(streams.set(one, false));
        work.join();
    }
}

TEST_F(ThrottledStreamsOfASession, NoticeForAnUnknownContextEndsTheSession) {
    for (const StreamThrottleNotice& wrong :
         {StreamThrottleNotice{kLegacy, 0x999, 0, 1}, StreamThrottleNotice{kOwn, 0, 0, 1},
          StreamThrottleNotice{0, codec::to_wire(first_.handle), 0, 1}}) {
        Server& server = Server::fresh();
        server.session->contexts.add(0, 0, false);
        server.send(notice(NoticeType::throttle, wrong));
        EXPECT_TRUE(server.session->lost());
    }
}

}  // namespace
}  // namespace gpupool::test
