#include "tests/support/manual_clock.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace gpupool::test {

TimeSource::TimePoint ManualClock::now() const noexcept {
    const Lock lock(mutex_);
    return now_;
}

bool ManualClock::wait_until(Condition& condition, UniqueLock& lock, TimePoint end) {
    std::list<Waiter>::iterator waiter;
    {
        const Lock own(mutex_);
        if (now_ >= end) {
            return false;
        }
        waiter = waiters_.insert(waiters_.end(), {&condition, end});
    }
    changed_.notify_all();
    condition.wait(lock);
    const Lock own(mutex_);
    waiters_.erase(waiter);
    return now_ < end;
}

// A waiter that is registered may not be inside condition.wait() yet and so miss a notification. It is therefore
// notified until it has returned.
void ManualClock::advance(Duration time) {
    UniqueLock lock(mutex_);
    now_ += time;
    const auto notify_due = [this]() GP_REQUIRES(mutex_) {
        bool any = false;
        for (const Waiter& waiter : waiters_) {
            if (waiter.end <= now_) {
                waiter.condition->notify_all();
                any = true;
            }
        }
        return any;
    };
    while (notify_due()) {
        const Unlocked unlocked(lock, mutex_);
        std::this_thread::yield();
    }
}

template <class Predicate>
bool ManualClock::wait_for_change(Predicate over) {
    UniqueLock lock(mutex_);
    return changed_.wait_for(lock, kLimit, std::move(over));
}

bool ManualClock::wait_for_waiters(std::size_t count) {
    return wait_for_change([&]() GP_REQUIRES(mutex_) { return waiters_.size() >= count; });
}

bool ManualClock::wait_for_wait_until(Duration left) {
    return wait_for_change([&]() GP_REQUIRES(mutex_) {
        const TimePoint end = now_ + left;
        return std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) { return waiter.end == end; });
    });
}

}  // namespace gpupool::test
