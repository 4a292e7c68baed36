#include "protocol/export_tables/context_storage.h"

#include <pthread.h>

#include <algorithm>

#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/registry.h"
#include "protocol/export_tables/table.h"
#include "protocol/export_tables/tables.h"

namespace gpupool::client::export_tables {
namespace {

// A thread's cache: direct-mapped, and without a destructor, so that it is usable until the thread's very end.
struct Remembered {
    const ContextStorage* storage = nullptr;
    std::uint64_t generation = 0;
    CUcontext context = nullptr;
    void* key = nullptr;
    void* value = nullptr;
};
constexpr std::size_t kRememberedCount = 8;
thread_local constinit Remembered remembered[kRememberedCount];

Remembered& memory_of(CUcontext context, void* key) noexcept {
    const auto mixed = reinterpret_cast<std::uintptr_t>(context) * 31 + reinterpret_cast<std::uintptr_t>(key);
    return remembered[(mixed >> 4 ^ mixed >> 9) % kRememberedCount];
}

// Destructors may store values again; a program whose destructors always do must not keep the context from ending.
constexpr int kMaxDestructorRounds = 4;

}  // namespace

CUresult ContextStorage::put(CUcontext context, void* key, void* value, StorageDestructor destructor) noexcept {
    try {
        const Lock guard(mutex_);
        Entries& entries = contexts_[context];
        for (const Entry& entry : entries) {
            if (entry.key == key) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
        }
        if (entries.size() == kMaxEntries) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        entries.push_back({key, value, destructor});
        generation_.fetch_add(1, std::memory_order_release);
        return CUDA_SUCCESS;
    } catch (...) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

CUresult ContextStorage::get(CUcontext context, void* key, void** value) noexcept {
    // Read before the look-up: a change in between makes the cached entry stale, never wrong.
    const std::uint64_t generation = generation_.load(std::memory_order_acquire);
    Remembered& memory = memory_of(context, key);
    if (memory.storage == this && memory.generation == generation && memory.context == context && memory.key == key) {
        *value = memory.value;
        return CUDA_SUCCESS;
    }
    const Lock guard(mutex_);
    const auto entries = contexts_.find(context);
    if (entries == contexts_.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const Entry& entry : entries->second) {
        if (entry.key != key) {
            continue;
        }
        memory = {this, generation, context, key, entry.value};
        *value = entry.value;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult ContextStorage::remove(CUcontext context, void* key) noexcept {
    const Lock guard(mutex_);
    const auto entries = contexts_.find(context);
    if (entries == contexts_.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto entry = std::find_if(entries->second.begin(), entries->second.end(),
                                    [key](const Entry& candidate) { return candidate.key == key; });
    if (entry == entries->second.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    entries->second.erase(entry);
    if (entries->second.empty()) {
        contexts_.erase(entries);
    }
    generation_.fetch_add(1, std::memory_order_release);
    return CUDA_SUCCESS;
}

void ContextStorage::context_ends(CUcontext context) noexcept {
    for (int round = 0; round < kMaxDestructorRounds; ++round) {
        Entries ended;
        {
            const Lock guard(mutex_);
            const auto entries = contexts_.find(context);
            if (entries == contexts_.end()) {
                return;
            }
            ended.swap(entries->second);
            contexts_.erase(entries);
            generation_.fetch_add(1, std::memory_order_release);
        }
        // Without the lock: destructors look other keys up.
        for (const Entry& entry : ended) {
            if (entry.destructor != nullptr) {
                entry.destructor(context, entry.key, entry.value);
            }
        }
    }
}

ContextStorage& context_storage() noexcept {
    // Never destroyed: cudart removes its keys when the process exits.
    static ContextStorage* const storage = [] {
        // fork() runs these in pairs, which the analysis does not see.
        pthread_atfork([]() GP_NO_THREAD_SAFETY_ANALYSIS { context_storage().lock(); },
                       []() GP_NO_THREAD_SAFETY_ANALYSIS { context_storage().unlock(); },
                       []() GP_NO_THREAD_SAFETY_ANALYSIS { context_storage().unlock(); });
        return new ContextStorage;
    }();
    return *storage;
}

namespace {

// Created when the library is loaded: a child that is forked while another thread creates it would wait for ever.
[[maybe_unused]] const ContextStorage& made_early = context_storage();

}  // namespace

void context_ends(CUcontext context) noexcept {
    context_storage().context_ends(context);
}

namespace {

// Null means the current context; there must be one.
CUresult resolve(CUcontext& context) noexcept {
    if (context != nullptr) {
        return CUDA_SUCCESS;
    }
    ClientView* client = view();
    if (client == nullptr) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (const CUresult result = client->current_context(&context); result != CUDA_SUCCESS) {
        return result;
    }
    return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult put(CUcontext context, void* key, void* value, StorageDestructor destructor) noexcept {
    if (const CUresult result = resolve(context); result != CUDA_SUCCESS) {
        return result;
    }
    return context_storage().put(context, key, value, destructor);
}

CUresult remove(CUcontext context, void* key) noexcept {
    if (const CUresult result = resolve(context); result != CUDA_SUCCESS) {
        return result;
    }
    return context_storage().remove(context, key);
}

CUresult get(void** value, CUcontext context, void* key) noexcept {
    if (value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = resolve(context); result != CUDA_SUCCESS) {
        return result;
    }
    return context_storage().get(context, key, value);
}

}  // namespace

const void* context_local_storage() noexcept {
    // The only table without its size in slot 0: three functions and a null.
    static const std::array<Slot, 4> table = {slot(put), slot(remove), slot(get), nullptr};
    return table.data();
}

}  // namespace gpupool::client::export_tables
