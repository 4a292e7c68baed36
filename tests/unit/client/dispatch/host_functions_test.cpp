// The application's host functions run one at a time, in the order in which the worker reports them due.
#include "client/core/dispatch/host_functions.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "client/core/dispatch/thread.h"
#include "tests/support/waiting.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using client::HostFunctions;

// Never destroyed, because the thread that runs the functions lives as long as the process.
struct Fixture {
    HostFunctions functions;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::uint64_t> done;
    int ended = 0;

    Fixture() {
        functions.start([this](std::uint64_t ticket) {
            const std::lock_guard lock(mutex);
            done.push_back(ticket);
            ++ended;
            changed.notify_all();
        });
    }
    bool wait_for(int count) {
        std::unique_lock lock(mutex);
        return changed.wait_for(lock, 60s, [&] { return ended >= count; });
    }
    static Fixture& fresh() {
        static auto& all = *new std::vector<std::unique_ptr<Fixture>>;
        return *all.emplace_back(std::make_unique<Fixture>());
    }
};

TEST(HostFunctionsOfTheClient, RunInTheOrderInWhichTheyAreDue) {
    Fixture& f = Fixture::fresh();
    std::vector<int> order;  // accessed only by the thread that runs the functions
    const auto first = f.functions.submit([&](CUresult) { order.push_back(1); });
    const auto second = f.functions.submit([&](CUresult) { order.push_back(2); });
    f.functions.due(second, CUDA_SUCCESS);
    f.functions.due(first, CUDA_SUCCESS);
    ASSERT_TRUE(f.wait_for(2));
    EXPECT_EQ(order, (std::vector{2, 1}));
    EXPECT_EQ(f.done, (std::vector{second, first}));
}

TEST(HostFunctionsOfTheClient, ReceiveTheStatusAndMayNotCallCuda) {
    Fixture& f = Fixture::fresh();
    CUresult status = CUDA_SUCCESS;
    bool marked = false;
    const auto ticket = f.functions.submit([&](CUresult result) {
        status = result;
        marked = client::this_thread().in_host_function;
    });
    f.functions.due(ticket, CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_TRUE(f.wait_for(1));
    EXPECT_EQ(status, CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_TRUE(marked);
    EXPECT_FALSE(client::this_thread().in_host_function) << "only the functions' thread is in a host function";
}

TEST(HostFunctionsOfTheClient, ArePendingUntilTheyHaveRun) {
    Fixture& f = Fixture::fresh();
    std::atomic<bool> go{false}, inside{false};
    const auto first = f.functions.submit([&](CUresult) {
        inside = true;
        while (!go) {
            std::this_thread::yield();
        }
    });
    const auto second = f.functions.submit([](CUresult) {});
    const auto other = f.functions.submit([](CUresult) {});
    f.functions.due(first, CUDA_SUCCESS);
    while (!inside) {
        std::this_thread::yield();
    }
    EXPECT_TRUE(f.functions.any_pending()) << "it is running";
    go = true;
    ASSERT_TRUE(f.wait_for(1));
    f.functions.cancel(second);
    EXPECT_TRUE(f.functions.due(second, CUDA_SUCCESS)) << "a cancelled ticket is ignored";
    EXPECT_FALSE(f.functions.due(12345, CUDA_SUCCESS)) << "an invented ticket";
    EXPECT_TRUE(f.functions.due(other, CUDA_SUCCESS));
    ASSERT_TRUE(f.wait_for(2));
    EXPECT_EQ(f.done, (std::vector{first, other}));
    EXPECT_FALSE(f.functions.any_pending());
}

// A hostile server invents tickets, and repeats notices while a function runs.
TEST(HostFunctionsOfTheClient, QueueIsBounded) {
    Fixture& f = Fixture::fresh();
    std::atomic<bool> go{false}, inside{false};
    std::atomic<int> runs{0};
    const auto first = f.functions.submit([&](CUresult) {
        inside = true;
        while (!go) {
            std::this_thread::yield();
        }
    });
    const auto second = f.functions.submit([&](CUresult) { ++runs; });
    f.functions.due(first, CUDA_SUCCESS);
    while (!inside) {
        std::this_thread::yield();
    }
    for (std::uint64_t i = 0; i < 1000; ++i) {
        f.functions.due(first, CUDA_SUCCESS);     // already running
        f.functions.due(second, CUDA_SUCCESS);    // due once, then repeated
        f.functions.due(1000 + i, CUDA_SUCCESS);  // an unknown ticket
    }
    EXPECT_EQ(f.functions.waiting(), 1u);
    go = true;
    const auto last = f.functions.submit([](CUresult) {});
    f.functions.due(last, CUDA_SUCCESS);  // runs after everything that is due by now
    ASSERT_TRUE(f.wait_for(3));
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(f.done, (std::vector{first, second, last}));
}

TEST(HostFunctionsOfTheClient, GraphFunctionsAreBounded) {
    Fixture& f = Fixture::fresh();
    std::atomic<bool> go{false};
    const auto wait = [&](CUresult) {
        while (!go) {
            std::this_thread::yield();
        }
    };
    constexpr std::uint64_t kMax = HostFunctions::kMaxGraphFunctions, kFirst = 1ull << 63;
    for (std::uint64_t i = 0; i < kMax; ++i) {
        ASSERT_TRUE(f.functions.run_when_due(kFirst + i, wait)) << i;
    }
    EXPECT_FALSE(f.functions.run_when_due(kFirst + kMax, wait)) << "one too many";
    EXPECT_FALSE(f.functions.run_when_due(kFirst, wait)) << "this ticket is in use";
    go = true;
    ASSERT_TRUE(f.wait_for(static_cast<int>(kMax)));
    EXPECT_TRUE(f.functions.run_when_due(kFirst + kMax, wait)) << "there is room again";
    ASSERT_TRUE(f.wait_for(static_cast<int>(kMax) + 1));  // the functions use this scope's variables
}

TEST(HostFunctionsOfTheClient, EndWithTheSession) {
    Fixture& f = Fixture::fresh();
    std::atomic<bool> ran{false};
    const auto ticket = f.functions.submit([&](CUresult) { ran = true; });
    f.functions.end();
    f.functions.due(ticket, CUDA_SUCCESS);
    ASSERT_TRUE(wait_until_others_sleep());
    EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace gpupool::test
