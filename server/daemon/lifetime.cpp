#include "server/daemon/lifetime.h"

namespace gpupool::daemon {

namespace {

constexpr const WorkerRule& rule_of(WorkerState state) {
    return kWorkerRules[static_cast<std::size_t>(state)];
}

// The row of a state is found by its number.
constexpr bool rows_in_order() {
    for (std::size_t i = 0; i < kWorkerRules.size(); ++i) {
        if (kWorkerRules[i].state != static_cast<WorkerState>(i)) {
            return false;
        }
    }
    return kWorkerRules.back().state == WorkerState::killed;
}
static_assert(rows_in_order());

}  // namespace

Lifetime::Lifetime(const Config& config, WorkerState first, TimePoint now)
    : config_(&config), state_(first), entered_(now), reported_(now) {}

bool Lifetime::note(WorkerEvent event, TimePoint now) {
    for (const WorkerChange& change : kWorkerChanges) {
        if (change.event != event || (change.from & any_of(state_)) == 0) {
            continue;
        }
        const bool still_over = over() && change.to >= WorkerState::ending && event != WorkerEvent::overdue;
        if (still_over && deadline_in(rule_of(change.to), now) >= deadline()) {
            return false;
        }
        state_ = change.to;
        entered_ = now;
        reported_ = now;
        return true;
    }
    return false;
}

Lifetime::TimePoint Lifetime::deadline() const {
    return deadline_in(rule(), rule().since == WorkerRule::Since::entry ? entered_ : reported_);
}

const WorkerRule& Lifetime::rule() const {
    return rule_of(state_);
}

Lifetime::TimePoint Lifetime::deadline_in(const WorkerRule& rule, TimePoint since) const {
    if (rule.then == WorkerRule::Then::nothing) {
        return TimeSource::kNever;
    }
    return since + (rule.setting != nullptr ? config_->*rule.setting : rule.constant);
}

}  // namespace gpupool::daemon
