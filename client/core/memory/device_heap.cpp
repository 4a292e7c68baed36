#include "client/core/memory/device_heap.h"

#include <algorithm>
#include <utility>

#include "client/core/tracing/trace.h"
#include "common/round_up.h"

namespace gpupool::client {

CUresult DeviceHeap::allocate(std::uint64_t bytes, std::uint64_t& address) {
    constexpr std::uint64_t kMaxBytes = 1ull << 46;
    if (bytes > kMaxBytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    UniqueLock lock(mutex_);
    if (bytes >= kLargeBytes) {
        return allocate_large(lock, round_up(bytes, AddressWindow::kGranularity), address);
    }
    bytes = round_up(bytes, kAlignment);
    for (address = take(bytes); address == 0; address = take(bytes)) {
        if (growing_) {
            const trace::Wait waiting;
            grown_.wait(lock, [&]() GP_REQUIRES(mutex_) { return !growing_; });
            continue;
        }
        growing_ = true;
        const CUresult result = commit_shared_slab(lock, bytes);
        growing_ = false;
        grown_.notify_all();
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    note_block(address, bytes);
    return CUDA_SUCCESS;
}

void DeviceHeap::note_block(std::uint64_t address, std::uint64_t bytes) {
    blocks_[address] = bytes;
    std::prev(slabs_.upper_bound(address))->second.used_bytes += bytes;
}

CUresult DeviceHeap::allocate_large(UniqueLock& lock, std::uint64_t bytes, std::uint64_t& address) {
    if (spare_.there && spare_.bytes == bytes) {
        address = std::exchange(spare_, {}).address;
        slabs_[address] = {bytes, 0, false};
    } else if (const CUresult result = commit_slab(lock, bytes, false, address); result != CUDA_SUCCESS) {
        // The server has no more memory, but a shared slab may have room.
        address = result == CUDA_ERROR_OUT_OF_MEMORY ? take(bytes) : 0;
        if (address == 0) {
            return result;
        }
        note_block(address, bytes);
        return CUDA_SUCCESS;
    }
    slabs_[address].used_bytes = bytes;
    blocks_[address] = bytes;
    large_.note(bytes);
    if (const std::uint64_t next = large_.next(); next != 0 && next <= kMaxSpareBytes && next != spare_.bytes) {
        release_spare(lock);
        prepare_spare(lock, next);
    }
    return CUDA_SUCCESS;
}

void DeviceHeap::prepare_spare(UniqueLock& lock, std::uint64_t bytes) {
    if (spare_.bytes != 0 || !server_.prepare) {
        return;  // one was asked for already
    }
    const std::uint64_t address = window_.allocate(bytes);
    if (address == 0) {
        return;
    }
    spare_ = {address, bytes, false};
    CUresult sent = CUDA_SUCCESS;
    {
        const Unlocked unlocked(lock, mutex_);
        sent = server_.prepare(address, bytes);
    }
    if (sent != CUDA_SUCCESS) {
        spare_ = {};
        window_.free(address, bytes);
    }
}

bool DeviceHeap::prepared(std::uint64_t address, CUresult result) {
    const UniqueLock lock(mutex_);
    if (spare_.bytes == 0 || spare_.address != address || spare_.there) {
        return false;
    }
    if (result == CUDA_SUCCESS) {
        spare_.there = true;
        return true;
    }
    window_.free(address, std::exchange(spare_, {}).bytes);
    large_.forget();  // do not ask ahead again: memory is short
    return true;
}

bool DeviceHeap::release_spare(UniqueLock& lock) {
    if (!spare_.there) {
        return false;
    }
    const Spare spare = std::exchange(spare_, {});
    give_back(lock, spare.address, spare.bytes);
    return true;
}

void DeviceHeap::give_back(UniqueLock& lock, std::uint64_t address, std::uint64_t bytes) {
    const Unlocked unlocked(lock, mutex_);
    server_.release(address, bytes);
    window_.free(address, bytes);  // only after the release was sent
}

// Commits a slab with room for a block of `bytes`, and for more if there is memory.
CUresult DeviceHeap::commit_shared_slab(UniqueLock& lock, std::uint64_t bytes) {
    const std::uint64_t least = round_up(bytes, AddressWindow::kGranularity);
    const std::uint64_t wanted = std::max(least, std::clamp(shared_bytes_, kLeastSlabBytes, kMaxSlabBytes));
    std::uint64_t slab = 0;
    CUresult result = commit_slab(lock, wanted, true, slab);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && wanted != least) {
        result = commit_slab(lock, least, true, slab);
    }
    if (result == CUDA_SUCCESS) {
        put_free(slab, slabs_[slab].bytes);
    }
    return result;
}

CUresult DeviceHeap::commit(UniqueLock& lock, std::uint64_t address, std::uint64_t bytes) {
    const Unlocked unlocked(lock, mutex_);
    return server_.commit(address, bytes);
}

CUresult DeviceHeap::commit_slab(UniqueLock& lock, std::uint64_t bytes, bool shared, std::uint64_t& address) {
    address = window_.allocate(bytes);
    if (address == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = commit(lock, address, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && release_empty(lock)) {
        result = commit(lock, address, bytes);
    }
    if (result != CUDA_SUCCESS) {
        window_.free(address, bytes);
        return result;
    }
    slabs_[address] = {bytes, 0, shared};
    shared_bytes_ += shared ? bytes : 0;
    return CUDA_SUCCESS;
}

std::uint64_t DeviceHeap::take(std::uint64_t bytes) {
    const auto fit = free_by_size_.lower_bound({bytes, 0});
    if (fit == free_by_size_.end()) {
        return 0;
    }
    const auto [free_bytes, address] = *fit;
    erase_free(free_.find(address));
    if (free_bytes > bytes) {
        free_[address + bytes] = free_bytes - bytes;
        free_by_size_.insert({free_bytes - bytes, address + bytes});
    }
    return address;
}

void DeviceHeap::erase_free(std::pmr::map<std::uint64_t, std::uint64_t>::iterator it) {
    free_by_size_.erase({it->second, it->first});
    free_.erase(it);
}

void DeviceHeap::put_free(std::uint64_t address, std::uint64_t bytes) {
    const auto slab = std::prev(slabs_.upper_bound(address));
    const std::uint64_t slab_end = slab->first + slab->second.bytes;
    auto next = free_.lower_bound(address);
    if (next != free_.end() && next->first == address + bytes && next->first != slab_end) {
        bytes += next->second;
        erase_free(next);
        next = free_.lower_bound(address);
    }
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == address && before->first >= slab->first) {
            address = before->first;
            bytes += before->second;
            erase_free(before);
        }
    }
    free_[address] = bytes;
    free_by_size_.insert({bytes, address});
}

void DeviceHeap::free(std::uint64_t address) {
    UniqueLock lock(mutex_);
    const auto block = blocks_.find(address);
    if (block == blocks_.end()) {
        return;
    }
    const std::uint64_t bytes = block->second;
    blocks_.erase(block);
    const auto slab = std::prev(slabs_.upper_bound(address));
    slab->second.used_bytes -= bytes;
    if (slab->second.shared) {
        put_free(address, bytes);
    }
    release_if_empty(lock, slab);
}

void DeviceHeap::release(UniqueLock& lock, SlabPlace slab) {
    const auto [address, facts] = *slab;
    if (facts.shared) {
        erase_free(free_.find(address));
        shared_bytes_ -= facts.bytes;
    }
    slabs_.erase(slab);
    give_back(lock, address, facts.bytes);
}

bool DeviceHeap::trim() {
    UniqueLock lock(mutex_);
    return release_empty(lock);
}

bool DeviceHeap::release_empty(UniqueLock& lock) {
    const bool had_spare = release_spare(lock);
    const SlabPlace empty = find_empty(slabs_.end());
    if (empty == slabs_.end()) {
        return had_spare;
    }
    release(lock, empty);
    return true;
}

DeviceHeap::SlabPlace DeviceHeap::find_empty(SlabPlace but) {
    auto slab = slabs_.begin();
    while (slab != slabs_.end() && (slab == but || !slab->second.shared || slab->second.used_bytes != 0)) {
        ++slab;
    }
    return slab;
}

void DeviceHeap::release_if_empty(UniqueLock& lock, SlabPlace slab) {
    if (slab->second.used_bytes != 0) {
        return;
    }
    if (!slab->second.shared) {
        release(lock, slab);
        return;
    }
    // Keep one empty slab, so that a program that alternately frees and allocates does not cause a round trip each
    // time.
    if (const SlabPlace other = find_empty(slab); other != slabs_.end()) {
        release(lock, other->second.bytes < slab->second.bytes ? other : slab);
    }
}

std::uint64_t DeviceHeap::free_bytes() const {
    const UniqueLock lock(mutex_);
    std::uint64_t total = spare_.there ? spare_.bytes : 0;
    for (const auto& [address, bytes] : free_) {
        total += bytes;
    }
    return total;
}

}  // namespace gpupool::client
