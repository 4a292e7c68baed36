// The daemon's event loop: one asio::io_context, with timers whose clock a test may replace, and watches of descriptors
// that others own.
//
// Asio's own objects would close the descriptors that they watch, and its timers read the system's clock. The daemon
// watches descriptors of connections that it passes on to workers, and its unit tests advance the time themselves: they
// call poll() in place of run().
//
// Ownership: a Timer, a Watch and a Background refer to their Loop, which outlives them. Destroying a Timer or a Watch
// cancels it, also from within its own callback.
// Threads: one thread uses all of it, except where noted.
// Errors: callbacks throw nothing.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "common/clock.h"

namespace gpupool::daemon {

class Loop {
  public:
    using TimePoint = TimeSource::TimePoint;
    using Callback = std::function<void()>;

    explicit Loop(TimeSource& clock = TimeSource::system());
    Loop(const Loop&) = delete;

    [[nodiscard]] asio::io_context& context() { return context_; }
    [[nodiscard]] TimeSource& clock() const { return clock_; }
    [[nodiscard]] TimePoint now() const { return clock_.now(); }

    // Calls callbacks until stop().
    void run();
    void stop() { context_.stop(); }
    // Calls the callbacks of all that is due or ready now, and of what that brings about.
    void poll();

    // Calls `callback` soon, from run() or poll(). Any thread.
    void post(Callback callback) { asio::post(context_, std::move(callback)); }

  private:
    friend class Timer;
    using Timers = std::multimap<TimePoint, class Timer*>;

    // Calls the timers that are due; false if none was.
    bool call_due();
    // Sets Asio's timer to the first of `timers_`, if the clock is the system's.
    void arm();

    TimeSource& clock_;
    asio::io_context context_{1};
    asio::steady_timer timer_{context_};
    Timers timers_;
};

class Timer {
  public:
    Timer(Loop& loop, Loop::Callback callback) : loop_(loop), callback_(std::move(callback)) {}
    ~Timer() { cancel(); }
    Timer(const Timer&) = delete;

    // Calls the callback at that time, in place of an earlier setting. TimeSource::kNever: not at all.
    void set(Loop::TimePoint when);
    void set_after(TimeSource::Duration time) { set(loop_.now() + time); }
    void cancel();

  private:
    friend class Loop;
    Loop& loop_;
    const Loop::Callback callback_;
    Loop::Timers::iterator place_{};
    bool set_ = false;
};

// Waits until a descriptor is ready. It may be ready without need.
class Watch {
  public:
    explicit Watch(Loop& loop) : loop_(loop), descriptor_(loop.context()) {}
    ~Watch() { stop(); }
    Watch(const Watch&) = delete;

    enum class For { reading, writing };
    // Calls `callback` once, in place of an earlier wait. The descriptor becomes non-blocking. It must stay open until
    // the next wait for another one, or stop(). -1: calls it soon.
    void wait(int descriptor, For what, Loop::Callback callback);
    // As wait() for reading, again and again until stop().
    void keep_waiting(int descriptor, Loop::Callback callback);
    // Gives the descriptor up. A process that took it over is not affected.
    void stop();

  private:
    struct Wait {
        Watch* watch;
        For what;
        Loop::Callback callback;
        bool repeated;
    };
    void begin(int descriptor, For what, Loop::Callback callback, bool repeated);
    void arm();
    static void ready(const std::weak_ptr<Wait>& weak);

    Loop& loop_;
    asio::posix::stream_descriptor descriptor_;
    std::shared_ptr<Wait> wait_;  // null: none
};

// A thread for what may block: the management library of a busy driver, a disk. The daemon's other thread never waits
// for it, but for the end of what is under way when the daemon ends.
class Background {
  public:
    explicit Background(Loop& loop);
    ~Background();
    Background(const Background&) = delete;

    // Runs `work` on the thread and then `done` with its result on the loop. Objects that they use must outlive them.
    // When the Background is destroyed, work that has not begun is dropped.
    template <class Work, class Done>
    void run(Work work, Done done) {
        asio::post(context_, [this, work = std::move(work), done = std::move(done)]() mutable {
            auto result = std::make_shared<decltype(work())>(work());
            loop_.post([result, done = std::move(done)]() mutable { done(std::move(*result)); });
        });
    }

  private:
    Loop& loop_;
    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> open_{context_.get_executor()};
    std::thread thread_;
};

}  // namespace gpupool::daemon
