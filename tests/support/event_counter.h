// Counts what code under test did, and lets a test wait until it has happened a number of times.
//
// Threads: any. Errors: wait_for() returns false after kLimit. add() allocates nothing.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/mutex.h"

namespace gpupool::test {

class EventCounter {
  public:
    static constexpr std::chrono::seconds kLimit{30};

    void add() {
        const Lock lock(mutex_);
        ++count_;
        changed_.notify_all();
    }
    void reset() {
        const Lock lock(mutex_);
        count_ = 0;
    }
    [[nodiscard]] std::size_t count() const {
        const Lock lock(mutex_);
        return count_;
    }
    [[nodiscard]] bool wait_for(std::size_t count) {
        UniqueLock lock(mutex_);
        return changed_.wait_for(lock, kLimit, [&]() GP_REQUIRES(mutex_) { return count_ >= count; });
    }

  private:
    mutable Mutex mutex_;
    Condition changed_;
    std::size_t count_ GP_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpupool::test
