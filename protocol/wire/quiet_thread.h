// A thread of ours in somebody else's process: it never runs the application's signal handlers.
//
// Ownership: the caller's. Threads: any. Errors: std::system_error where no thread can be had.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace gpupool::wire {

// `name`: at most 15 characters.
template <class Body>
std::thread quiet_thread(const char* name, Body body) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
        const sigset_t& mask;
        ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{before};
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
}

}  // namespace gpupool::wire
