// Annotations that say which mutex guards what. clang's -Wthread-safety checks them (scripts/lint); other compilers
// ignore them.
//
// - GP_GUARDED_BY(mutex): this member is accessed only with the mutex held (read also with a shared lock).
// - GP_PT_GUARDED_BY(mutex): the object that this pointer points to is guarded.
// - GP_REQUIRES(mutex): the caller of this function holds the mutex. In a lambda it stands before the body.
// - GP_REQUIRES_SHARED(mutex): the same with a shared lock.
// - GP_EXCLUDES(mutex): the caller does not hold the mutex.
// - GP_ACQUIRED_BEFORE(mutex): a thread that takes both mutexes takes this one first.
// - GP_NO_THREAD_SAFETY_ANALYSIS: the body of this function is not checked; a comment says why.
//
// The others are for common/mutex.h alone.
#pragma once

#if defined(__clang__)
#define GP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GP_THREAD_ANNOTATION(x)
#endif

#define GP_CAPABILITY(name) GP_THREAD_ANNOTATION(capability(name))
#define GP_SCOPED_CAPABILITY GP_THREAD_ANNOTATION(scoped_lockable)
#define GP_GUARDED_BY(mutex) GP_THREAD_ANNOTATION(guarded_by(mutex))
#define GP_PT_GUARDED_BY(mutex) GP_THREAD_ANNOTATION(pt_guarded_by(mutex))
#define GP_ACQUIRED_BEFORE(...) GP_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define GP_REQUIRES(...) GP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define GP_REQUIRES_SHARED(...) GP_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define GP_EXCLUDES(...) GP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GP_ACQUIRE(...) GP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GP_ACQUIRE_SHARED(...) GP_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define GP_RELEASE(...) GP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GP_RELEASE_SHARED(...) GP_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define GP_RELEASE_GENERIC(...) GP_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define GP_TRY_ACQUIRE(...) GP_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GP_ASSERT_CAPABILITY(x) GP_THREAD_ANNOTATION(assert_capability(x))
#define GP_RETURN_CAPABILITY(x) GP_THREAD_ANNOTATION(lock_returned(x))
#define GP_NO_THREAD_SAFETY_ANALYSIS GP_THREAD_ANNOTATION(no_thread_safety_analysis)
