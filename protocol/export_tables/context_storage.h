// Values that libraries attach to a context, by key: what stands behind CONTEXT_LOCAL_STORAGE.
//
// cudart looks its own state up here on nearly every call, so a look-up that was made before on the same thread takes
// no lock: each thread remembers its last ones, together with the storage's generation, which every change advances.
//
// Ownership: values are the caller's; their destructor is told when the context ends. Threads: any. Errors: CUresult
// with the driver's measured meanings: INVALID_HANDLE for a missing key, and for putting a key that is there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

using StorageDestructor = void (*)(CUcontext context, void* key, void* value);

class ContextStorage {
  public:
    // Entries of one context; beyond that a put gives CUDA_ERROR_OUT_OF_MEMORY.
    static constexpr std::size_t max_entries = 65536;

    CUresult put(CUcontext context, void* key, void* value, StorageDestructor destructor) noexcept;
    CUresult get(CUcontext context, void* key, void** value) noexcept;
    // Forgets the value without telling its destructor.
    CUresult remove(CUcontext context, void* key) noexcept;
    // Takes everything out that was stored for the context, then tells the destructors, in the order of storing.
    void context_ends(CUcontext context) noexcept;

    // Around fork(), so that the child does not find it locked.
    void lock() noexcept GP_ACQUIRE(mutex_) { mutex_.lock(); }
    void unlock() noexcept GP_RELEASE(mutex_) { mutex_.unlock(); }

  private:
    struct Entry {
        void* key;
        void* value;
        StorageDestructor destructor;
    };
    using Entries = std::vector<Entry>;  // a handful per context: one per library

    Mutex mutex_;
    std::unordered_map<CUcontext, Entries> contexts_ GP_GUARDED_BY(mutex_);
    // Advances under the lock; starts at 1, so that a thread's empty memory matches nothing.
    std::atomic<std::uint64_t> generation_{1};
};

// The process's one storage.
ContextStorage& context_storage() noexcept;

}  // namespace gpupool::client::export_tables
