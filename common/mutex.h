// Mutexes, locks and condition variables that clang's thread-safety analysis understands (common/thread_annotations.h).
// They are thin wrappers of POSIX', as the standard library's are, and cost the same.
//
// - Mutex: as std::mutex.
// - AdaptiveMutex: a Mutex for very short critical sections that several threads enter all the time. A thread that
//   finds it locked spins for a short time before it sleeps: a sleep and a wake-up cost far more than the section.
// - SharedMutex: as std::shared_mutex.
// - Lock: as std::lock_guard, for any of these. SharedLock: as std::shared_lock, for a SharedMutex.
// - UniqueLock: as std::unique_lock, for a Mutex. A Condition waits with it. Unlocked releases one for a scope. A
//   function that was given a UniqueLock passes its mutex to lock() and unlock().
// - Condition: as std::condition_variable. The analysis cannot know which mutex a predicate requires, so it does not
//   check the functions that call one.
//
// Ownership, threads and errors: as those of the standard library. A mutex of static storage duration is never
// destroyed, so threads may still use it while the process exits.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "common/thread_annotations.h"

namespace gpupool {

class GP_CAPABILITY("mutex") Mutex {
  public:
    constexpr Mutex() noexcept = default;
    Mutex(const Mutex&) = delete;
    Mutex& operator=(const Mutex&) = delete;

    void lock() noexcept GP_ACQUIRE() { ::pthread_mutex_lock(&mutex_); }
    void unlock() noexcept GP_RELEASE() { ::pthread_mutex_unlock(&mutex_); }
    [[nodiscard]] bool try_lock() noexcept GP_TRY_ACQUIRE(true) { return ::pthread_mutex_trylock(&mutex_) == 0; }

  protected:
    constexpr explicit Mutex(const pthread_mutex_t& initial) noexcept : mutex_(initial) {}

  private:
    friend class Condition;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class GP_CAPABILITY("mutex") AdaptiveMutex : public Mutex {
  public:
    constexpr AdaptiveMutex() noexcept : Mutex(pthread_mutex_t PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP) {}
};

class GP_CAPABILITY("mutex") SharedMutex {
  public:
    void lock() GP_ACQUIRE() { mutex_.lock(); }
    void unlock() GP_RELEASE() { mutex_.unlock(); }
    void lock_shared() GP_ACQUIRE_SHARED() { mutex_.lock_shared(); }
    void unlock_shared() GP_RELEASE_SHARED() { mutex_.unlock_shared(); }

  private:
    std::shared_mutex mutex_;
};

template <class Lockable>
class GP_SCOPED_CAPABILITY Lock {
  public:
    explicit Lock(Lockable& mutex) GP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    Lock(Lockable& mutex, std::adopt_lock_t) GP_REQUIRES(mutex) : mutex_(mutex) {}
    ~Lock() GP_RELEASE() { mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    Lockable& mutex_;
};

class GP_SCOPED_CAPABILITY SharedLock {
  public:
    explicit SharedLock(SharedMutex& mutex) GP_ACQUIRE_SHARED(mutex) : mutex_(&mutex) { mutex_->lock_shared(); }
    ~SharedLock() GP_RELEASE() { release(); }
    SharedLock(const SharedLock&) = delete;
    SharedLock& operator=(const SharedLock&) = delete;

    void unlock() GP_RELEASE() { release(); }

  private:
    // Called once the analysis counts the lock as released.
    void release() GP_NO_THREAD_SAFETY_ANALYSIS {
        if (mutex_ != nullptr) {
            std::exchange(mutex_, nullptr)->unlock_shared();
        }
    }
    SharedMutex* mutex_;
};

class GP_SCOPED_CAPABILITY UniqueLock {
  public:
    explicit UniqueLock(Mutex& mutex) GP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    ~UniqueLock() GP_RELEASE() {
        if (owns_) {
            mutex_.unlock();
        }
    }
    UniqueLock(const UniqueLock&) = delete;
    UniqueLock& operator=(const UniqueLock&) = delete;

    void lock() GP_ACQUIRE() {
        mutex_.lock();
        owns_ = true;
    }
    void unlock() GP_RELEASE() {
        owns_ = false;
        mutex_.unlock();
    }
    // `mutex` is the one of this lock. The analysis needs its name, because it does not follow a lock passed as an
    // argument.
    void lock(Mutex& mutex) GP_ACQUIRE(mutex) {
        mutex.lock();
        owns_ = true;
    }
    void unlock(Mutex& mutex) GP_RELEASE(mutex) {
        owns_ = false;
        mutex.unlock();
    }

  private:
    friend class Condition;
    friend class Unlocked;
    Mutex& mutex_;
    bool owns_ = true;
};

// `mutex` is the one that `lock` holds, named for the analysis as above.
class GP_SCOPED_CAPABILITY Unlocked {
  public:
    Unlocked(UniqueLock& lock, Mutex& mutex) GP_RELEASE(mutex) : lock_(lock), mutex_(mutex) {
        lock_.owns_ = false;
        mutex_.unlock();
    }
    ~Unlocked() GP_RELEASE() {
        mutex_.lock();
        lock_.owns_ = true;
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

  private:
    UniqueLock& lock_;
    Mutex& mutex_;
};

class Condition {
  public:
    Condition() noexcept = default;
    ~Condition() { ::pthread_cond_destroy(&condition_); }
    Condition(const Condition&) = delete;
    Condition& operator=(const Condition&) = delete;

    void notify_one() noexcept { ::pthread_cond_signal(&condition_); }
    void notify_all() noexcept { ::pthread_cond_broadcast(&condition_); }

    void wait(UniqueLock& lock) noexcept { ::pthread_cond_wait(&condition_, &lock.mutex_.mutex_); }
    template <class Predicate>
    void wait(UniqueLock& lock, Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        while (!over()) {
            wait(lock);
        }
    }

    // False: the time is over.
    bool wait_until(UniqueLock& lock, std::chrono::steady_clock::time_point end) noexcept {
        const auto since_boot = end.time_since_epoch();
        const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
        const timespec time{.tv_sec = static_cast<std::time_t>(seconds.count()),
                            .tv_nsec = static_cast<long>(std::chrono::nanoseconds(since_boot - seconds).count())};
        return ::pthread_cond_clockwait(&condition_, &lock.mutex_.mutex_, CLOCK_MONOTONIC, &time) != ETIMEDOUT;
    }
    // What the predicate says in the end.
    template <class Predicate>
    bool wait_until(UniqueLock& lock, std::chrono::steady_clock::time_point end,
                    Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        while (!over()) {
            if (!wait_until(lock, end)) {
                return over();
            }
        }
        return true;
    }

    bool wait_for(UniqueLock& lock, std::chrono::nanoseconds timeout) noexcept {
        return wait_until(lock, std::chrono::steady_clock::now() + timeout);
    }
    template <class Predicate>
    bool wait_for(UniqueLock& lock, std::chrono::nanoseconds timeout, Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        return wait_until(lock, std::chrono::steady_clock::now() + timeout, std::move(over));
    }

  private:
    pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace gpupool
