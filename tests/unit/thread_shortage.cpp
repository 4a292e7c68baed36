#include "tests/unit/thread_shortage.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> shortage{false};

}  // namespace

// Interposes the C library's function, and a sanitizer's.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*run)(void*), void* argument) {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
    return shortage ? EAGAIN : create(thread, attributes, run, argument);
}

namespace gpupool::test {

ThreadShortage::ThreadShortage() {
    shortage = true;
}

ThreadShortage::~ThreadShortage() {
    shortage = false;
}

}  // namespace gpupool::test
