// Commands that came while the dispatcher stays out of the driver (waiting_calls.h), and what else is to be done there:
// taken in their order when it may enter the driver again. Meanwhile some may go all the same: what the GPU may be
// waiting for, and questions that the driver answers whoever waits in it. When much is set aside the client is told to
// send no more work.
//
// Ownership: owns the commands. Threads: the dispatcher's alone.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "server/worker/dispatch/command.h"

namespace gpupool::worker {

class SetAside {
  public:
    // `hold` tells the client to send no more work (true), or to go on.
    explicit SetAside(std::function<void(bool)> hold) : hold_(std::move(hold)) {}

    [[nodiscard]] bool empty() const { return commands_.empty(); }
    // May it go before what is set aside, and while the dispatcher stays out?
    [[nodiscard]] bool lets_pass(const codec::CommandHeader& header) const;

    void add(Command command);
    // Of no command; before all commands.
    void add_action(std::function<void()> action) { actions_.push_back(std::move(action)); }

    // Takes what there is while `may_enter()`. True when there was anything.
    template <class MayEnter, class Dispatch>
    bool take(MayEnter&& may_enter, Dispatch&& dispatch) {
        bool moved = take_actions(may_enter);
        for (; !commands_.empty() && may_enter(); moved = true) {
            Command command = std::move(commands_.front());
            commands_.pop_front();
            dispatch(command);
        }
        if (commands_.empty() && std::exchange(client_held_, false)) {
            hold_(false);
        }
        return moved;
    }

    // The same, of no command; also while one is dispatched.
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
    std::function<void(bool)> hold_;
    std::deque<Command> commands_;
    std::deque<std::function<void()>> actions_;
    bool client_held_ = false;
};

}  // namespace gpupool::worker
