// The life of a worker process as the daemon sees it: its states, how long it may stay in each, and what changes them.
//
// The two tables below are all the rules by which the daemon ends a worker. Two more ways to the end are not the
// daemon's: a worker exits by itself after its client left or the session failed, and a worker whose daemon is gone for
// longer than Config::daemon_grace. If the daemon dies, the kernel kills the workers in stock.
//
// Ownership: values. Threads: the loop's. Errors: none.
#pragma once

#include <array>
#include <chrono>
#include <string_view>

#include "common/clock.h"
#include "server/daemon/config.h"

namespace gpupool::daemon {

enum class WorkerState : unsigned {
    introduced,   // connected to the daemon; its first report is not there yet
    preparing,    // in stock, not ready yet
    ready,        // in stock, waits for a session
    starting,     // has a session and has not reported it yet
    running,      // reports
    ending,       // reported that it is ending
    stopping,     // was asked to end
    unreachable,  // closed its socket
    retired,      // in stock, killed because it is not needed
    killed,       // killed for one of the reasons below; its process still exists
};

enum class WorkerEvent {
    prepared,     // reports that it is ready for a session
    assigned,     // gets a session
    reported,     // reports its session
    reports_end,  // reports that it is ending
    stop,         // the daemon stops, or its session is to end
    socket_lost,
    socket_back,  // it has connected again
    not_needed,   // in stock
    overdue,      // its time in a state is over
};

// What the daemon does when a worker stays in a state for too long. Killing is repeated: a process may hang in the
// kernel. Each kind of timeout is a setting or a constant.
struct WorkerRule {
    enum class Since { entry, report };
    enum class Then { nothing, kill, hang_up };

    WorkerState state;
    Since since;                    // from when on the time counts: the state's begin, or the last report in it
    milliseconds Config::*setting;  // null: `constant`
    milliseconds constant;
    Then then;
    std::string_view why;  // for the log
};

inline constexpr auto kWorkerRules = [] {
    using State = WorkerState;
    using enum WorkerRule::Since;
    using enum WorkerRule::Then;
    constexpr milliseconds kNone{};
    constexpr const char* kSilent = "it has been silent for too long";
    constexpr const char* kStays = "it was killed but still exists";
    // clang-format off
    return std::array{
        //         state              counts  setting                          constant   then     because
        WorkerRule{State::introduced,  entry,  nullptr,                         milliseconds(5000), hang_up, kSilent},
        WorkerRule{State::preparing,   report, &Config::worker_start_timeout,   kNone,              kill,    kSilent},
        WorkerRule{State::ready,       report, nullptr,                         kNone,              nothing, ""},
        WorkerRule{State::starting,    report, &Config::worker_start_timeout,   kNone,              kill,    kSilent},
        WorkerRule{State::running,     report, &Config::worker_silence_timeout, kNone,              kill,    kSilent},
        WorkerRule{State::ending,      entry,  &Config::worker_ending_timeout,  kNone,              kill,
                   "it reported that it is ending but did not exit"},
        WorkerRule{State::stopping,    entry,  &Config::stop_timeout,           kNone,              kill,
                   "it was asked to end but did not exit"},
        WorkerRule{State::unreachable, entry,  nullptr,                         milliseconds(500),  kill,
                   "it closed its supervision socket"},
        WorkerRule{State::retired,     entry,  nullptr,                         milliseconds(1000), kill,    kStays},
        WorkerRule{State::killed,      entry,  nullptr,                         milliseconds(1000), kill,    kStays},
    };
    // clang-format on
}();

// What changes a worker's state. An event without a row for the state changes nothing. Once a worker is to exit, a
// change that would give it more time does not happen either, unless its socket is back.
struct WorkerChange {
    WorkerEvent event;
    unsigned from;  // bits of states
    WorkerState to;
};

template <class... States>
constexpr unsigned any_of(States... states) {
    return (0u | ... | (1u << static_cast<unsigned>(states)));
}

inline constexpr auto kWorkerChanges = [] {
    using State = WorkerState;
    using Event = WorkerEvent;
    constexpr unsigned kServes = any_of(State::starting, State::running);
    constexpr unsigned kInStock = any_of(State::preparing, State::ready);
    constexpr unsigned kExits = any_of(State::ending, State::stopping, State::unreachable);
    // clang-format off
    return std::array{
        WorkerChange{Event::prepared,    any_of(State::preparing),                  State::ready},
        WorkerChange{Event::assigned,    any_of(State::ready),                      State::starting},
        WorkerChange{Event::reported,    any_of(State::starting),                   State::running},
        WorkerChange{Event::reports_end, kServes | kExits,                          State::ending},
        WorkerChange{Event::stop,        kServes | kExits,                          State::stopping},
        WorkerChange{Event::socket_lost, kInStock | kServes | kExits,               State::unreachable},
        WorkerChange{Event::socket_back, any_of(State::unreachable),                State::running},
        WorkerChange{Event::not_needed,  kInStock,                                  State::retired},
        WorkerChange{Event::overdue,     kInStock | kServes | kExits | any_of(State::killed), State::killed},
        WorkerChange{Event::overdue,     any_of(State::retired),                    State::retired},
    };
    // clang-format on
}();

class Lifetime {
  public:
    using TimePoint = TimeSource::TimePoint;

    Lifetime(const Config& config, WorkerState first, TimePoint now);

    [[nodiscard]] WorkerState state() const { return state_; }
    // Whether it is to exit, or should have.
    [[nodiscard]] bool over() const { return state_ >= WorkerState::ending; }

    // Returns whether the state has changed.
    bool note(WorkerEvent event, TimePoint now);
    // A message of the worker has arrived.
    void note_report(TimePoint now) { reported_ = now; }

    // When `rule().then` has to happen; kNever.
    [[nodiscard]] TimePoint deadline() const;
    [[nodiscard]] const WorkerRule& rule() const;

  private:
    [[nodiscard]] TimePoint deadline_in(const WorkerRule& rule, TimePoint since) const;

    const Config* config_;
    WorkerState state_;
    TimePoint entered_;
    TimePoint reported_;
};

}  // namespace gpupool::daemon
