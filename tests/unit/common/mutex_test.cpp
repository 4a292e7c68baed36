#include "common/mutex.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <thread>
#include <vector>

namespace gpupool {
namespace {

using std::chrono::milliseconds;

template <class M>
int count_with_threads() {
    M mutex;
    int count = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int step = 0; step < 1000; ++step) {
                const Lock lock(mutex);
                ++count;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return count;
}

// Whether a thread holds it.
template <class M>
bool is_locked(M& mutex) {
    bool locked = true;
    std::thread([&] {
        if (mutex.try_lock()) {
            locked = false;
            mutex.unlock();
        }
    }).join();
    return locked;
}

TEST(Mutex, KeepsThreadsApart) {
    EXPECT_EQ(count_with_threads<Mutex>(), 4000);
    EXPECT_EQ(count_with_threads<AdaptiveMutex>(), 4000);
    EXPECT_EQ(count_with_threads<SharedMutex>(), 4000);
}

TEST(Mutex, IsTriedWithoutWaiting) {
    AdaptiveMutex mutex;
    if (!mutex.try_lock()) {
        FAIL() << "no thread has locked it";
    }
    std::thread([&] {
        if (mutex.try_lock()) {
            ADD_FAILURE() << "another thread has locked it";
            mutex.unlock();
        }
    }).join();
    mutex.unlock();
}

TEST(Mutex, IsSharedByReaders) {
    SharedMutex mutex;
    const SharedLock lock(mutex);
    std::thread([&] { const SharedLock second(mutex); }).join();
}

TEST(UniqueLock, IsReleasedForAScope) {
    Mutex mutex;
    UniqueLock lock(mutex);
    EXPECT_TRUE(is_locked(mutex));
    {
        const Unlocked unlocked(lock, mutex);
        EXPECT_FALSE(is_locked(mutex));
    }
    EXPECT_TRUE(is_locked(mutex));
    lock.unlock();
    EXPECT_FALSE(is_locked(mutex));
}

TEST(Condition, WakesOnceThePredicateHolds) {
    AdaptiveMutex mutex;
    Condition changed;
    bool ready = false;
    std::thread other([&] {
        const Lock lock(mutex);
        ready = true;
        changed.notify_all();
    });
    {
        UniqueLock lock(mutex);
        changed.wait(lock, [&] { return ready; });
        EXPECT_TRUE(is_locked(mutex));
        EXPECT_TRUE(changed.wait_for(lock, milliseconds(0), [&] { return ready; }));
    }
    other.join();
}

TEST(Condition, EndsAtItsTimeout) {
    Mutex mutex;
    Condition changed;
    UniqueLock lock(mutex);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(changed.wait_for(lock, milliseconds(20), [] { return false; }));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
    EXPECT_FALSE(changed.wait_until(lock, begin));  // in the past
    EXPECT_TRUE(is_locked(mutex));
}

}  // namespace
}  // namespace gpupool
