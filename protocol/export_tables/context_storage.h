// Values that libraries attach to a context, by key: the implementation of the table CONTEXT_LOCAL_STORAGE.
//
// cudart looks its own state up here on nearly every call, so a repeated look-up on the same thread takes no lock: each
// thread caches its last results together with the storage's generation, which every change increments.
//
// Ownership: values are the caller's; their destructor is called when the context ends. Threads: any. Errors: CUresult
// with the meanings measured on NVIDIA's driver: INVALID_HANDLE for a missing key, and for a put of an existing key.
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
    // Entries per context; beyond that a put returns CUDA_ERROR_OUT_OF_MEMORY.
    static constexpr std::size_t kMaxEntries = 65536;

    CUresult put(CUcontext context, void* key, void* value, StorageDestructor destructor) noexcept;
    CUresult get(CUcontext context, void* key, void** value) noexcept;
    // Removes the value without calling its destructor.
    CUresult remove(CUcontext context, void* key) noexcept;
    // Removes everything stored for the context, then calls the destructors in the order of storing.
    void context_ends(CUcontext context) noexcept;

    // Called around fork(), so that the mutex is not locked in the child.
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
    // Incremented with the mutex held; starts at 1, so that a thread's empty cache matches nothing.
    std::atomic<std::uint64_t> generation_{1};
};

// The process-wide storage.
ContextStorage& context_storage() noexcept;

}  // namespace gpupool::client::export_tables
