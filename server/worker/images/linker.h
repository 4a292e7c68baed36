// The JIT linker: its states, and the thread that makes all of its calls.
//
// NVIDIA's linker keeps something for each thread: a process in which one thread creates a state, another adds to it
// and a third destroys it crashes now and then in a later call (docs/driver-facts.md). So all of its calls are one
// thread's.
//
// Threads: the dispatcher's, unless marked otherwise.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/worker/dispatch/helpers.h"
#include "server/worker/images/jit_options.h"

namespace gpupool::worker {

// Its inputs and log buffers stay in place until it is destroyed.
struct LinkState {
    CUcontext context = nullptr;
    JitOptions jit;
    CUlinkState driver = nullptr;
    std::vector<std::shared_ptr<const std::vector<std::byte>>> inputs;
    std::vector<unsigned char> linked;  // output of the call under way
    // Used by the dispatcher only:
    std::vector<unsigned char> result;
    bool busy = false;                             // a call is under way
    std::deque<std::function<void()>> calls_next;  // calls that begin when those before them have been answered
};

class Linker {
  public:
    Linker(Inbox& inbox, Tracer& tracer) : inbox_(inbox), tracer_(tracer) {}

    std::unordered_map<CUlinkState, std::shared_ptr<LinkState>> states;  // by client handle
    std::size_t in_making = 0;

    // Starts the thread if this is the first call. False if it cannot be started.
    bool start() {
        if (thread_ != nullptr) {
            return true;
        }
        try {
            thread_ = std::make_unique<Helpers>(inbox_, &tracer_, 1);
        } catch (const std::system_error&) {
            return false;
        }
        return true;
    }
    // Runs `work` on the thread, then `done` on the dispatcher.
    void run(std::function<void()> work, std::function<void()> done) { thread_->run(std::move(work), std::move(done)); }
    void stop() {
        if (thread_ != nullptr) {
            thread_->stop();
        }
    }

  private:
    Inbox& inbox_;
    Tracer& tracer_;
    std::unique_ptr<Helpers> thread_;
};

}  // namespace gpupool::worker
