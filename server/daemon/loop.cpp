#include "server/daemon/loop.h"

#include <iterator>

#include "common/log.h"
#include "common/quiet_thread.h"

namespace gpupool::daemon {

Loop::Loop(TimeSource& clock) : clock_(clock) {}

void Loop::run() {
    const asio::executor_work_guard<asio::io_context::executor_type> open(context_.get_executor());
    context_.restart();
    arm();
    context_.run();
}

void Loop::poll() {
    context_.restart();
    do {
        while (context_.poll() != 0) {
        }
    } while (call_due());
}

bool Loop::call_due() {
    const TimePoint now = clock_.now();
    const auto due = std::distance(timers_.begin(), timers_.upper_bound(now));
    // A callback may set timers for now, which must not keep the loop here, and may destroy others.
    for (auto left = due; left > 0 && !timers_.empty() && timers_.begin()->first <= now; --left) {
        Timer& timer = *timers_.begin()->second;
        timer.cancel();
        const Callback callback = timer.callback_;  // it may destroy the timer
        callback();
    }
    return due != 0;
}

void Loop::arm() {
    if (timers_.empty() || &clock_ != &TimeSource::system()) {
        return;
    }
    timer_.expires_at(timers_.begin()->first);
    timer_.async_wait([this](const asio::error_code& error) {
        if (!error) {
            call_due();
            arm();
        }
    });
}

void Timer::set(Loop::TimePoint when) {
    cancel();
    if (when == TimeSource::kNever) {
        return;
    }
    place_ = loop_.timers_.emplace(when, this);
    set_ = true;
    if (place_ == loop_.timers_.begin()) {
        loop_.arm();
    }
}

void Timer::cancel() {
    if (std::exchange(set_, false)) {
        loop_.timers_.erase(place_);
    }
}

void Watch::wait(int descriptor, For what, Loop::Callback callback) {
    begin(descriptor, what, std::move(callback), false);
}

void Watch::keep_waiting(int descriptor, Loop::Callback callback) {
    begin(descriptor, For::reading, std::move(callback), true);
}

// Without release(), Asio would close the descriptor. It also takes it out of the epoll set, where it would otherwise
// stay for as long as another process has it.
void Watch::stop() {
    wait_.reset();
    if (descriptor_.is_open()) {
        (void)descriptor_.release();
    }
}

void Watch::begin(int descriptor, For what, Loop::Callback callback, bool repeated) {
    if (!descriptor_.is_open() || descriptor_.native_handle() != descriptor) {
        stop();
    }
    wait_ = std::make_shared<Wait>(Wait{this, what, std::move(callback), repeated});
    if (descriptor < 0) {
        loop_.post([wait = std::weak_ptr(wait_)] { ready(wait); });
        return;
    }
    asio::error_code error;
    if (descriptor_.is_open()) {
        descriptor_.cancel(error);
    } else {
        descriptor_.assign(descriptor, error);
    }
    if (error) {
        log::error("cannot watch descriptor {}: {}", descriptor, error.message());
        return;
    }
    arm();
}

void Watch::arm() {
    const auto type = wait_->what == For::reading ? asio::posix::descriptor_base::wait_read
                                                  : asio::posix::descriptor_base::wait_write;
    descriptor_.async_wait(type, [wait = std::weak_ptr(wait_)](const asio::error_code& error) {
        if (!error) {
            ready(wait);
        }
    });
}

void Watch::ready(const std::weak_ptr<Wait>& weak) {
    const auto wait = weak.lock();
    if (wait == nullptr) {
        return;
    }
    Watch& watch = *wait->watch;
    if (!wait->repeated) {
        watch.wait_.reset();
    }
    wait->callback();  // it may destroy the watch, or begin another wait
    const bool goes_on = wait->repeated && wait.use_count() > 1;
    if (goes_on) {
        watch.arm();
    }
}

Background::Background(Loop& loop)
    : loop_(loop), thread_(quiet_thread("gpupoold-blocks", [this] { context_.run(); })) {}

Background::~Background() {
    context_.stop();
    thread_.join();
}

}  // namespace gpupool::daemon
