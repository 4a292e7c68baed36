// A mutex for what is held for some dozen nanoseconds and wanted by several threads all the time.
//
// Who finds it taken looks for a moment before it sleeps, since sleeping and being woken costs a system call on either
// side, a hundred times what is waited for. Otherwise it is a std::mutex, for the same locks and condition variables.
//
// Ownership, threads and errors: as std::mutex.
#pragma once

#include <pthread.h>

#include <mutex>

namespace gpupool {

class AdaptiveMutex : public std::mutex {
  public:
    AdaptiveMutex() {
        pthread_mutexattr_t attributes;
        ::pthread_mutexattr_init(&attributes);
        ::pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
        ::pthread_mutex_init(native_handle(), &attributes);
        ::pthread_mutexattr_destroy(&attributes);
    }
};

}  // namespace gpupool
