// Translates between the client's handles and the driver's, both ways.
//
// Threads: the dispatcher's alone; helper threads get the driver's handles.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "protocol/codec/handles.h"

namespace gpupool::worker {

class HandleTable {
  public:
    enum class Found { yes, no, creation_failed };
    struct Lookup {
        Found found = Found::no;
        std::uint64_t driver = 0;
    };

    // The driver's handle for `handle`. A kernel may stand for a function, as in the driver.
    template <class Handle>
    Lookup find(Handle handle) const {
        return find_wire(codec::handle_kind_of<Handle>, codec::to_wire(handle));
    }

    // Replaces the client's handle by the driver's; CUDA_ERROR_INVALID_VALUE if there is none.
    template <class Handle>
    CUresult translate(Handle& handle) const {
        const Lookup found = find(handle);
        handle = codec::from_wire<Handle>(found.driver);
        return found.found == Found::yes && found.driver != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }

    template <class Handle>
    void bind(Handle client, Handle driver) {
        bind_wire(codec::to_wire(client), codec::to_wire(driver));
    }

    // find() for a launch in the context of that number. `first` becomes true if it is the function's first launch
    // there.
    Lookup use(CUfunction function, std::uint64_t context, bool& first);
    // The launch failed: the next one counts as the first.
    void forget_use(CUfunction function);

    static constexpr std::size_t kMaxHandles = 512u << 10;

    // Sets the session's limit. If there are more already, it refuses new ones.
    void limit(std::uint64_t handles) { max_handles_ = std::min<std::uint64_t>(handles, kMaxHandles); }
    [[nodiscard]] bool full() const {
        return entries_.size() >= kMaxHandles || entries_.size() - failed_ >= max_handles_;
    }

    // May `client` become the handle of a new object of this kind?
    CUresult check_new(codec::HandleKind kind, std::uint64_t client) const;

    // The call that was to create `client` failed and that was reported: later uses of the handle fail silently.
    void bind_failed(std::uint64_t client);
    // Unbinds its parts too.
    void unbind(std::uint64_t client);

    // Brackets the destruction of the object on a helper. begin_destroy() returns false if a helper destroys it
    // already.
    bool begin_destroy(std::uint64_t client) { return ending_.insert(client).second; }
    void end_destroy(std::uint64_t client) { ending_.erase(client); }

    // `part` ends with `owner`: a level with its mipmapped array, a function with its module. Does nothing unless both
    // are bound.
    void add_part(std::uint64_t owner, std::uint64_t part);

    // The client's handle for one of the driver's; mints one if there is none yet.
    template <class Handle>
    Handle client_handle(Handle driver) {
        return codec::from_wire<Handle>(client_wire(codec::handle_kind_of<Handle>, codec::to_wire(driver)));
    }

    // The same, or null if there is none.
    template <class Handle>
    [[nodiscard]] Handle known_handle(Handle driver) const {
        const auto& reverse = reverse_[static_cast<std::size_t>(codec::handle_kind_of<Handle>)];
        const auto it = reverse.find(codec::to_wire(driver));
        return codec::from_wire<Handle>(it == reverse.end() ? 0 : it->second);
    }
    // Calls `is_it` with the driver's handles of this kind until it returns true for one, and returns the client's
    // handle for that one; null if there is none.
    template <class Handle, class IsIt>
    [[nodiscard]] Handle find_client(IsIt is_it) const {
        for (const auto& [driver, client] : reverse_[static_cast<std::size_t>(codec::handle_kind_of<Handle>)]) {
            if (is_it(codec::from_wire<Handle>(driver))) {
                return codec::from_wire<Handle>(client);
            }
        }
        return {};
    }

    // The driver's object has ended: the driver may reuse its handle.
    template <class Handle>
    void forget_driver(Handle driver) {
        auto& reverse = reverse_[static_cast<std::size_t>(codec::handle_kind_of<Handle>)];
        if (const auto it = reverse.find(codec::to_wire(driver)); it != reverse.end()) {
            unbind(std::uint64_t{it->second});
        }
    }

    [[nodiscard]] std::size_t size() const { return entries_.size(); }

  private:
    struct Entry {
        std::uint64_t driver;
        bool failed;
        std::uint64_t used_in = 0;  // for a function: the context of its last launch
        std::uint64_t owner = 0;    // whose part it is; 0: none
    };

    // Null if there is no entry of that kind. `entries` is entries_, const or not.
    template <class Entries>
    static auto entry_of(Entries& entries, codec::HandleKind wanted, std::uint64_t client)
        -> decltype(&entries.begin()->second);
    Lookup find_wire(codec::HandleKind wanted, std::uint64_t client) const;
    void bind_wire(std::uint64_t client, std::uint64_t driver);
    std::uint64_t client_wire(codec::HandleKind kind, std::uint64_t driver);

    static constexpr std::size_t kKinds = static_cast<std::size_t>(codec::HandleKind::count_);

    std::unordered_map<std::uint64_t, Entry> entries_;
    std::array<std::unordered_map<std::uint64_t, std::uint64_t>, kKinds> reverse_;
    std::unordered_map<std::uint64_t, std::unordered_set<std::uint64_t>> parts_;  // by owner
    std::unordered_set<std::uint64_t> ending_;  // objects that helpers destroy now, by client handle
    std::uint64_t next_serial_ = 1;
    std::size_t max_handles_ = kMaxHandles;
    std::size_t failed_ = 0;  // entries whose creation failed
};

}  // namespace gpupool::worker
