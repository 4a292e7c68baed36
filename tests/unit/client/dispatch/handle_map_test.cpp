// Handle maps, read by threads that cache what they found.
#include "client/core/dispatch/handle_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::test {
namespace {

using Numbers = client::HandleMap<CUevent, int>;

CUevent handle(std::uint64_t number) {
    return reinterpret_cast<CUevent>(number << 4);
}

TEST(HandleMap, FindsCurrentEntries) {
    Numbers map, other;
    int value = -1;
    EXPECT_FALSE(map.find(handle(1), value));
    for (int round = 0; round < 3; ++round) {
        for (int i = 1; i < 20; ++i) {
            map.add(handle(static_cast<std::uint64_t>(i)), 100 * round + i);
        }
        for (int i = 1; i < 20; ++i) {
            for (int again = 0; again < 2; ++again) {
                ASSERT_TRUE(map.find(handle(static_cast<std::uint64_t>(i)), value));
                EXPECT_EQ(value, 100 * round + i);
            }
        }
    }
    EXPECT_FALSE(other.find(handle(19), value)) << "it belongs to another map";
    EXPECT_TRUE(map.find(handle(19), value));
    EXPECT_TRUE(map.remove(handle(19)));
    EXPECT_FALSE(map.find(handle(19), value)) << "it was removed";
    EXPECT_FALSE(map.remove(handle(19)));
    EXPECT_TRUE(map.find(handle(18), value));
}

// A removed handle is not found by a later lookup, whatever the thread has cached.
TEST(HandleMap, IsTheSameForAllThreads) {
    client::HandleMap<CUevent, std::shared_ptr<int>> map;
    std::atomic<std::uint64_t> removed{0};
    constexpr std::uint64_t kHandles = 3000;
    for (std::uint64_t i = 1; i <= kHandles; ++i) {
        map.add(handle(i), std::make_shared<int>(static_cast<int>(i)));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            while (removed < kHandles) {
                const std::uint64_t before = removed;
                std::shared_ptr<int> value;
                for (std::uint64_t i = before == 0 ? 1 : before; i < before + 5; ++i) {
                    const bool found = map.find(handle(i), value);
                    wrong += found && (i <= before || *value != static_cast<int>(i)) ? 1 : 0;
                }
            }
        });
    }
    for (std::uint64_t i = 1; i <= kHandles; ++i) {
        map.remove(handle(i));
        removed = i;
        if (i % 50 == 0) {
            std::this_thread::yield();
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gpupool::test
