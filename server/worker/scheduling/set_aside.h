// Commands that arrived while the driver is closed (waiting_calls.h), and other actions that need the driver. The
// dispatcher takes both, in order of arrival, when the driver opens again. Some commands need not wait: those that the
// GPU may be waiting for, and queries that the driver answers even while other calls wait in it. If too many commands
// accumulate here, the client is throttled.
//
// Ownership: owns the commands.
// Threads: the dispatcher's alone.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "server/worker/dispatch/command.h"

namespace gpupool::worker {

class SetAside {
  public:
    // `throttle` notifies the client to stop sending work (true) or to resume (false).
    explicit SetAside(std::function<void(bool)> throttle) : throttle_(std::move(throttle)) {}

    [[nodiscard]] bool empty() const { return commands_.empty(); }
    // May the command be served now: while the driver is closed, and before the commands that are queued here?
    [[nodiscard]] bool lets_pass(const codec::CommandHeader& header) const;

    void add(Command command);
    // Adds an action that belongs to no command; actions run before all commands.
    void add_action(std::function<void()> action) { actions_.push_back(std::move(action)); }

    // Runs actions and dispatches commands while `may_enter()`. True if there was anything to do.
    template <class MayEnter, class Dispatch>
    bool take(MayEnter&& may_enter, Dispatch&& dispatch) {
        bool moved = take_actions(may_enter);
        for (; !commands_.empty() && may_enter(); moved = true) {
            Command command = std::move(commands_.front());
            commands_.pop_front();
            dispatch(command);
        }
        if (commands_.empty() && std::exchange(throttled_, false)) {
            throttle_(false);
        }
        return moved;
    }

    // The same for actions only. May be called while a command is being dispatched.
    template <class MayEnter>
    bool take_actions(MayEnter&& may_enter) {
        bool moved = false;
        for (; !actions_.empty() && may_enter(); moved = true) {
            const std::function<void()> action = std::move(actions_.front());
            actions_.pop_front();
            action();
        }
        return moved;
    }

  private:
    std::function<void(bool)> throttle_;
    std::deque<Command> commands_;
    std::deque<std::function<void()>> actions_;
    bool throttled_ = false;
};

}  // namespace gpupool::worker
