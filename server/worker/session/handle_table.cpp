#include "server/worker/session/handle_table.h"

#include <utility>

namespace gpupool::worker {

using codec::HandleKind;

template <class Entries>
auto HandleTable::entry_of(Entries& entries, HandleKind wanted, std::uint64_t client)
    -> decltype(&entries.begin()->second) {
    const HandleKind kind = codec::kind_of(client);
    // An executable graph may have the driver's handle as its name (gpGraphExecOnDevice), which has no kind.
    const bool stands_in = (wanted == HandleKind::function && kind == HandleKind::kernel) ||
                           (wanted == HandleKind::graph_exec && kind == HandleKind::none);
    if (kind != wanted && !stands_in) {
        return nullptr;
    }
    const auto it = entries.find(client);
    return it == entries.end() ? nullptr : &it->second;
}

HandleTable::Lookup HandleTable::find_wire(HandleKind wanted, std::uint64_t client) const {
    if (client == 0 || (wanted == HandleKind::stream && client <= 2)) {
        return {Found::yes, client};
    }
    const Entry* const entry = entry_of(entries_, wanted, client);
    if (entry == nullptr) {
        return {};
    }
    return {entry->failed ? Found::creation_failed : Found::yes, entry->driver};
}

HandleTable::Lookup HandleTable::use(CUfunction function, std::uint64_t context, bool& first) {
    Entry* const entry = entry_of(entries_, HandleKind::function, codec::to_wire(function));
    if (entry == nullptr) {
        return {};
    }
    first = std::exchange(entry->used_in, context) != context;
    return {entry->failed ? Found::creation_failed : Found::yes, entry->driver};
}

void HandleTable::forget_use(CUfunction function) {
    if (Entry* const entry = entry_of(entries_, HandleKind::function, codec::to_wire(function))) {
        entry->used_in = 0;
    }
}

void HandleTable::bind_wire(std::uint64_t client, std::uint64_t driver) {
    Entry& entry = entries_[client];
    failed_ -= entry.failed ? 1 : 0;
    entry.driver = driver;
    entry.failed = false;
    reverse_[static_cast<std::size_t>(codec::kind_of(client))][driver] = client;
}

void HandleTable::bind_failed(std::uint64_t client) {
    if (entries_.size() < kMaxHandles) {
        Entry& entry = entries_[client];
        failed_ += entry.failed ? 0 : 1;
        entry = {0, true};
    }
}

CUresult HandleTable::check_new(HandleKind kind, std::uint64_t client) const {
    if (codec::kind_of(client) != kind || (client & (codec::kMintedByWorker | 0xf)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto it = entries_.find(client);
    if (it != entries_.end()) {
        return it->second.failed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    return full() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void HandleTable::unbind(std::uint64_t client) {
    const auto it = entries_.find(client);
    if (it == entries_.end()) {
        return;
    }
    auto& reverse = reverse_[static_cast<std::size_t>(codec::kind_of(client))];
    if (const auto back = reverse.find(it->second.driver); back != reverse.end() && back->second == client) {
        reverse.erase(back);
    }
    if (const auto siblings = parts_.find(it->second.owner); siblings != parts_.end()) {
        siblings->second.erase(client);
    }
    failed_ -= it->second.failed ? 1 : 0;
    entries_.erase(it);
    if (const auto own = parts_.extract(client)) {
        for (const std::uint64_t part : own.mapped()) {
            unbind(part);
        }
    }
}

void HandleTable::add_part(std::uint64_t owner, std::uint64_t part) {
    const auto it = entries_.find(part);
    if (it == entries_.end() || !entries_.contains(owner) || it->second.owner != 0) {
        return;
    }
    it->second.owner = owner;
    parts_[owner].insert(part);
}

std::uint64_t HandleTable::client_wire(HandleKind kind, std::uint64_t driver) {
    if (driver == 0 || (kind == HandleKind::stream && driver <= 2)) {
        return driver;
    }
    auto& reverse = reverse_[static_cast<std::size_t>(kind)];
    if (const auto it = reverse.find(driver); it != reverse.end()) {
        return it->second;
    }
    const std::uint64_t client = codec::make_handle(kind, next_serial_++, true);
    entries_[client] = {driver, false};
    reverse[driver] = client;
    return client;
}

}  // namespace gpupool::worker
