// Maps the client's handles to what it knows about them. Calls on the hot path look handles up all the time, while
// entries change rarely. Each thread therefore caches its last few lookups, and a repeated lookup takes no lock.
//
// Ownership: owns the values; a thread may keep copies of the few values it found last until it ends.
// Threads: any.
// Errors: none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <utility>

#include "client/core/dispatch/recent_lookups.h"
#include "common/mutex.h"

namespace gpupool::client {

template <class Handle, class Value>
class HandleMap {
  public:
    void add(Handle handle, Value value) {
        const Lock lock(mutex_);
        if (!values_.insert_or_assign(handle, std::move(value)).second) {
            change();  // only a replaced value can be in a thread's cache
        }
    }
    bool remove(Handle handle) {
        const Lock lock(mutex_);
        const bool known = values_.erase(handle) != 0;
        change();
        return known;
    }
    bool find(Handle handle, Value& value) const {
        static thread_local RecentLookups<Handle, Value, kRemembered> recent;
        auto& place = recent.place_of(handle);
        if (!place.holds(handle, this, generation_.load(std::memory_order_acquire))) {
            const SharedLock lock(mutex_);
            const auto it = values_.find(handle);
            if (it == values_.end()) {
                return false;
            }
            place = {handle, this, generation_.load(std::memory_order_relaxed), it->second};
        }
        value = place.value;
        return true;
    }

  private:
    static constexpr std::size_t kRemembered = 4;

    void change() { generation_.store(generation_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

    mutable SharedMutex mutex_;
    // add() allocates only when the map exceeds its largest size so far.
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);
    std::pmr::unordered_map<Handle, Value> values_ GP_GUARDED_BY(mutex_){&nodes_};
    std::atomic<std::uint64_t> generation_{0};  // written with the mutex held
};

}  // namespace gpupool::client
