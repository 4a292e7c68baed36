// What the client knows of its handles, of which the calls of the call path ask all the time and which change seldom: a
// thread that asks for what it has asked for lately takes no lock.
//
// Ownership: of the values; a thread may keep copies of the few it found last until it ends. Threads: any. Errors:
// none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace gpupool::client {

template <class Handle, class Value>
class HandleMap {
  public:
    void add(Handle handle, Value value) {
        const std::unique_lock lock(mutex_);
        if (!values_.insert_or_assign(handle, std::move(value)).second) {
            change();  // nobody remembers one that was not there
        }
    }
    bool remove(Handle handle) {
        const std::unique_lock lock(mutex_);
        const bool known = values_.erase(handle) != 0;
        change();
        return known;
    }
    bool find(Handle handle, Value& value) const {
        static thread_local std::array<Found, kFound> lately;
        Found& found = lately[place_of(handle)];
        if (found.map != this || found.handle != handle || found.changes != changes_.load(std::memory_order_acquire)) {
            const std::shared_lock lock(mutex_);
            const auto it = values_.find(handle);
            if (it == values_.end()) {
                return false;
            }
            found = {this, handle, changes_.load(std::memory_order_relaxed), it->second};
        }
        value = found.value;
        return true;
    }

  private:
    static constexpr std::size_t kFound = 4;
    struct Found {
        const HandleMap* map = nullptr;
        Handle handle{};
        std::uint64_t changes = 0;
        Value value{};
    };

    static std::size_t place_of(Handle handle) {
        return static_cast<std::size_t>(reinterpret_cast<std::uint64_t>(handle) * 0x9e3779b97f4a7c15u >> 62);
    }
    void change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

    mutable std::shared_mutex mutex_;
    std::unordered_map<Handle, Value> values_;
    std::atomic<std::uint64_t> changes_{0};  // written with the mutex held
};

}  // namespace gpupool::client
