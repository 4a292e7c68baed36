#include "common/clock.h"

namespace gpupool {
namespace {

class SystemClock final : public TimeSource {
  public:
    [[nodiscard]] TimePoint now() const noexcept override { return std::chrono::steady_clock::now(); }
    bool wait_until(Condition& condition, UniqueLock& lock, TimePoint end) override {
        if (end == kNever) {
            condition.wait(lock);
            return true;
        }
        return condition.wait_until(lock, end);
    }
};

}  // namespace

TimeSource& TimeSource::system() {
    static SystemClock& clock = *new SystemClock;  // never destroyed: threads use it while the process exits
    return clock;
}

void TimeSource::sleep_for(Duration time) {
    Mutex mutex;
    Condition condition;
    UniqueLock lock(mutex);
    for (const TimePoint end = now() + time; wait_until(condition, lock, end);) {
    }
}

}  // namespace gpupool
