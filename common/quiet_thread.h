// Starts a thread inside an application's process that blocks all signals, so that the process's signals go to the
// application's own threads. Signals for faults stay unblocked: a fault of this thread reaches the application's
// handler.
//
// Ownership: the caller's. Threads: any. Errors: std::system_error if no thread can be created.
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
