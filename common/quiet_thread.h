// A thread of ours in somebody else's process: signals that are sent to the process are none of its business. Those of
// faults are its own, and end where the application wants them.
//
// Ownership: the caller's. Threads: any. Errors: std::system_error where no thread can be had.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace gpupool {

// `name`: at most 15 characters.
template <class Body>
std::thread quiet_thread(const char* name, Body body) {
    sigset_t blocked;
    sigset_t before;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
        sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    struct Restore {
        const sigset_t& mask;
        ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{before};
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
}

}  // namespace gpupool
