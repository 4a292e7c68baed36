// Launches of several streams that several threads issue: which may be reordered, and which may not.

#include "server/worker/scheduling/issuers.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::test {
namespace {

using worker::Worker;

constexpr std::size_t kStreams = 4;

// The driver calls, in their order.
struct Seen {
    std::mutex mutex;
    std::condition_variable changed;                          // a launch was made
    std::map<CUstream, std::vector<std::uint64_t>> launches;  // their serials
    std::set<std::thread::id> threads;
    std::vector<std::size_t> launched_before_memset;
    std::atomic<std::size_t> launched{0};
    std::uint64_t failing = ~std::uint64_t{0};  // the serial of the launch that the driver refuses
    CUcontext wanted_context = reinterpret_cast<CUcontext>(0x300);
    std::atomic<std::size_t> without_context{0};
    std::function<void(std::uint64_t)> before_launch;
    std::atomic<bool> refuse_context_once{false};  // once for each issuer thread
};
Seen* seen = nullptr;
thread_local CUcontext current = nullptr;

bool is_issuer() {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    return std::string_view(name) == "gpupool-issue";
}

driver::Library recording_driver() {
    driver::Library library;
    driver::Api& api = library.api;
    add_idle_gpu(api);
    api.cuCtxSetCurrent = [](CUcontext context) {
        static thread_local const Seen* refused = nullptr;
        if (seen->refuse_context_once && refused != seen && is_issuer()) {
            refused = seen;
            return CUDA_ERROR_LAUNCH_FAILED;
        }
        current = context;
        return CUDA_SUCCESS;
    };
    api.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream stream, void**, void** extra) {
        std::uint64_t serial = 0;
        std::memcpy(&serial, extra[1], sizeof serial);
        if (seen->before_launch) {
            seen->before_launch(serial);
        }
        // Other launches would overtake, if nothing prevented it.
        for (int i = 0; i < (serial % 7 == 0 ? 50 : 1); ++i) {
            std::this_thread::yield();
        }
        seen->without_context += current == seen->wanted_context ? 0 : 1;
        const std::lock_guard lock(seen->mutex);
        seen->launches[stream].push_back(serial);
        seen->threads.insert(std::this_thread::get_id());
        ++seen->launched;
        seen->changed.notify_all();
        return serial == seen->failing ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    };
    api.cuMemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream) {
        const std::lock_guard lock(seen->mutex);
        seen->launched_before_memset.push_back(seen->launched);
        return CUDA_SUCCESS;
    };
    return library;
}

class WorkerIssuers : public testing::Test {
  protected:
    WorkerIssuers() { seen = &seen_; }
    ~WorkerIssuers() override { seen = nullptr; }

    static Worker::Options with_issuers(std::size_t count) {
        Worker::Options options;
        options.issuers = count;
        return options;
    }
    // Adds `count` launches, in runs of `run` for one stream after the other.
    void add_launches(LaunchingSession& session, FrameOfCommands& frame, std::size_t count, std::size_t run = 1) {
        for (std::size_t i = 0; i < count; ++i) {
            session.add_launch(frame, i / run % kStreams, &serial_, sizeof serial_);
            ++serial_;
        }
    }
    void wait_for_launches(std::size_t count) {
        std::unique_lock lock(seen_.mutex);
        ASSERT_TRUE(seen_.changed.wait_for(lock, std::chrono::seconds(60), [&] { return seen_.launched >= count; }));
    }

    Seen seen_;
    std::uint64_t serial_ = 0;
};

TEST_F(WorkerIssuers, SeveralThreadsIssueInStreamOrder) {
    constexpr std::size_t kLaunches = 2000;
    {
        LaunchingSession session(recording_driver(), kStreams, with_issuers(3));
        for (int i = 0; i < 10; ++i) {
            FrameOfCommands frame = session.frame();
            add_launches(session, frame, kLaunches / 10, i % 2 == 0 ? 1 : 3);
            session.send(frame);
        }
        wait_for_launches(kLaunches);
    }
    std::size_t count = 0;
    for (const auto& [stream, serials] : seen_.launches) {
        EXPECT_TRUE(std::is_sorted(serials.begin(), serials.end()));
        count += serials.size();
    }
    EXPECT_EQ(count, kLaunches);
    EXPECT_EQ(seen_.launches.size(), kStreams);
    EXPECT_EQ(seen_.threads.size(), 4u);
    EXPECT_EQ(seen_.without_context, 0u);
}

TEST_F(WorkerIssuers, LaterCommandsWaitForTheIssuers) {
    constexpr std::size_t kRounds = 40, kInRound = 50;
    {
        LaunchingSession session(recording_driver(), kStreams, with_issuers(3));
        FrameOfCommands frame = session.frame();
        for (std::size_t i = 0; i < kRounds; ++i) {
            add_launches(session, frame, kInRound);
            session.add_memset(frame, i % kStreams);
        }
        add_launches(session, frame, kInRound);
        session.send(frame);
        wait_for_launches((kRounds + 1) * kInRound);
    }
    ASSERT_EQ(seen_.launched_before_memset.size(), kRounds);
    for (std::size_t i = 0; i < kRounds; ++i) {
        EXPECT_EQ(seen_.launched_before_memset[i], (i + 1) * kInRound);
    }
    EXPECT_EQ(seen_.threads.size(), 4u);
}

// An entry may go as soon as its data is there, also while the dispatcher has left launches to the issuers and goes on
// with the next frame. It must not go before them.
TEST_F(WorkerIssuers, QueuedWorkWaitsForTheIssuers) {
    constexpr std::size_t kLaunches = 120, kMixed = 60, kLast = kStreams - 1, kQueued = kStreams;
    constexpr std::uint64_t kSlow = 30;  // an issuer takes long for one of the launches from this serial on
    std::atomic<bool> ready{false}, issued{false}, any_slow{false}, at_last_launch{false};
    std::size_t launched_before = 0;
    class Queued final : public worker::Entry {
      public:
        explicit Queued(std::function<worker::Reason()> issue) : issue_(std::move(issue)) {}
        worker::Reason advance() override { return issue_(); }

      private:
        const std::function<worker::Reason()> issue_;
    };
    LaunchingSession session(recording_driver(), kStreams + 1, with_issuers(2));
    session.queue(kQueued, std::make_unique<Queued>([&] {
                      if (!ready) {
                          return worker::Reason::data;
                      }
                      launched_before = seen_.launched;
                      issued = true;
                      return worker::Reason::none;
                  }));
    FrameOfCommands frame = session.frame(), next = session.frame();
    for (; serial_ < kLaunches; ++serial_) {
        // The dispatcher makes the last launches itself: the fourth stream is its own.
        session.add_launch(frame, serial_ < kMixed ? serial_ % kLast : kLast, &serial_, sizeof serial_);
    }
    session.add_launch(next, kLast, &serial_, sizeof serial_);
    seen_.before_launch = [&](std::uint64_t serial) {
        if (serial == 0) {
            session.send(next);  // so there is more to do when the frame ends
            ready = true;
        }
        at_last_launch = at_last_launch || serial + 1 == kLaunches;
        if (!is_issuer() || serial < kSlow || any_slow.exchange(true)) {
            return;
        }
        while (!at_last_launch) {
            std::this_thread::yield();
        }
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
        while (!issued && std::chrono::steady_clock::now() < until) {
            std::this_thread::yield();
        }
    };
    session.send(frame);
    wait_for_launches(kLaunches + 1);
    session.end();
    EXPECT_TRUE(issued);
    EXPECT_GE(launched_before, kLaunches);
    EXPECT_GT(seen_.threads.size(), 1u);
}

TEST_F(WorkerIssuers, FailureIsLatchedInItsStream) {
    seen_.failing = 33;
    LaunchingSession session(recording_driver(), kStreams, with_issuers(3));
    FrameOfCommands frame = session.frame();
    add_launches(session, frame, 100);
    session.add_memset(frame, 0);
    session.send(frame);
    wait_for_launches(100);
    session.end();
    EXPECT_EQ(session.context().streams_latched, 1u) << "latched in its own stream";
    EXPECT_GT(seen_.threads.size(), 1u);
}

TEST_F(WorkerIssuers, NothingIsIssuedInAWrongContext) {
    constexpr std::size_t kIssuers = 3, kLaunches = 100;
    seen_.refuse_context_once = true;
    LaunchingSession session(recording_driver(), kStreams, with_issuers(kIssuers));
    FrameOfCommands frame = session.frame();
    add_launches(session, frame, kLaunches);
    session.send(frame);
    wait_for_launches(kLaunches - kIssuers);
    session.end();
    EXPECT_EQ(seen_.launched, kLaunches - kIssuers) << "each issuer lost one launch";
    EXPECT_EQ(seen_.without_context, 0u);
}

TEST_F(WorkerIssuers, DispatcherIssuesOneStreamOrWithoutIssuers) {
    for (const std::size_t issuers : {std::size_t{3}, std::size_t{0}}) {
        const std::size_t before = seen_.launched;
        LaunchingSession session(recording_driver(), kStreams, with_issuers(issuers));
        FrameOfCommands frame = session.frame();
        add_launches(session, frame, 400, issuers == 0 ? 1 : 400);
        session.send(frame);
        wait_for_launches(before + 400);
        session.end();
        EXPECT_EQ(seen_.threads.size(), 1u);
        seen_.threads.clear();
    }
}

TEST_F(WorkerIssuers, SessionEndsWhileIssuersWork) {
    LaunchingSession session(recording_driver(), kStreams, with_issuers(3));
    FrameOfCommands frame = session.frame();
    add_launches(session, frame, 5000);
    session.send(frame);
    wait_for_launches(10);
}

}  // namespace
}  // namespace gpupool::test
