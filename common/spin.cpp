#include "common/spin.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/processors.h"

namespace gpupool {
namespace {

constexpr unsigned kEnoughProcessors = 4;

// The value of GPUPOOL_SPIN.
std::string_view asked() {
    const char* const value = std::getenv("GPUPOOL_SPIN");
    return value == nullptr ? "auto" : value;
}

// 0 if `value` is not a number of processors.
unsigned processors_named(std::string_view value) noexcept {
    unsigned enough = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), enough);
    return error == std::errc() && end == value.data() + value.size() ? enough : 0;
}

bool decide() {
    const std::string_view how = asked();
    if (how == "always" || how == "never") {
        return how == "always";
    }
    const unsigned enough = processors_named(how);
    return processors_allowed() >= (enough == 0 ? kEnoughProcessors : enough);
}

// Whether the scheduler preempted the calling thread since its previous call of this function (or since it began).
// Waiting for a lock does not count: the thread then yields the processor voluntarily.
bool was_suspended() noexcept {
    thread_local long before = 0;
    rusage usage{};
    if (::getrusage(RUSAGE_THREAD, &usage) != 0) {
        return true;
    }
    return std::exchange(before, usage.ru_nivcsw) != usage.ru_nivcsw;
}

}  // namespace

Status check_spin_setting(std::string_view value) {
    if (value.empty() || value == "auto" || value == "always" || value == "never" || processors_named(value) != 0) {
        return {};
    }
    return Error{ErrorCode::invalid_input,
                 fmt::format("GPUPOOL_SPIN: '{}' is not auto, always, never or a number of processors", value)};
}

bool spinning_pays() noexcept {
    static const bool pays = decide();
    return pays;
}

void Contention::note(TimePoint now) noexcept {
    const Ticks at = now.time_since_epoch().count();
    const Ticks over = until_.load(std::memory_order_relaxed);
    if (at < over || matters_ == Matters::no) {
        return;  // another thread noted the same contention
    }
    const auto ticks = [](std::chrono::milliseconds time) { return std::chrono::steady_clock::duration(time).count(); };
    const Ticks last = pause_.load(std::memory_order_relaxed);
    const bool same = at - over < kSameWithin * last;
    const Ticks next = same ? std::min(2 * last, ticks(kLongest)) : ticks(kShortest);
    Ticks expected = over;
    if (until_.compare_exchange_strong(expected, at + next, std::memory_order_relaxed)) {
        pause_.store(next, std::memory_order_relaxed);
    }
}

bool Contention::note_suspended(TimePoint now) noexcept {
    const bool suspended = was_suspended();
    if (suspended) {
        note(now);
    }
    return suspended;
}

Contention& contention() noexcept {
    static Contention of_process(asked() == "always" ? Contention::Matters::no : Contention::Matters::yes);
    return of_process;
}

}  // namespace gpupool
