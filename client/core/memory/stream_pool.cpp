#include "client/core/memory/stream_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/mutex.h"
#include "common/round_up.h"

namespace gpupool::client {
namespace {

std::uint64_t rounded(std::uint64_t bytes) {
    return round_up(bytes, bytes >= DeviceHeap::kLargeBytes ? AddressWindow::kGranularity : DeviceHeap::kAlignment);
}

// A reused block may be larger than requested, but not by much.
std::uint64_t largest_for(std::uint64_t bytes) {
    return bytes + std::max<std::uint64_t>(bytes / 8, 64u << 10);
}

}  // namespace

CUresult StreamPool::allocate(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address) {
    if (bytes > std::numeric_limits<std::uint64_t>::max() / 2) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes = rounded(bytes);
    UniqueLock lock(mutex_);
    if (take(bytes, stream, address)) {
        return CUDA_SUCCESS;
    }
    poll_fences();
    if (const auto fit = kept_.lower_bound({bytes, 0}); fit != kept_.end() && fit->first <= largest_for(bytes)) {
        const Place place = take_kept(fit);
        address = place.second;
        give(place);
        return_unused(lock);
        return CUDA_SUCCESS;
    }
    return_unused(lock);  // also unlocks: the heap may need a round trip
    const CUresult result = heap_.allocate(bytes, address);
    lock.lock();
    if (result == CUDA_SUCCESS) {
        usage_.reserved_bytes += bytes;
        give({bytes, address});
    }
    return result;
}

bool StreamPool::take(std::uint64_t bytes, const StreamKey& stream, std::uint64_t& address) {
    const auto it = streams_.find(stream);
    if (it == streams_.end()) {
        return false;
    }
    std::pmr::map<Place, std::uint64_t>& freed = it->second.freed;
    const auto fit = freed.lower_bound({bytes, 0});
    if (fit == freed.end() || fit->first.first > largest_for(bytes)) {
        return false;
    }
    const Place place = fit->first;
    freed.erase(fit);
    freed_count_.fetch_sub(1, std::memory_order_relaxed);
    address = place.second;
    give(place);
    return true;
}

void StreamPool::give(const Place& place) {
    live_[place.second] = place.first;
    usage_.used_bytes += place.first;
    usage_.used_high_bytes = std::max(usage_.used_high_bytes, usage_.used_bytes);
    usage_.reserved_high_bytes = std::max(usage_.reserved_high_bytes, usage_.reserved_bytes);
}

std::optional<StreamPool::Place> StreamPool::take_back(std::uint64_t address) {
    const auto it = live_.find(address);
    if (it == live_.end()) {
        return std::nullopt;
    }
    const Place place{it->second, address};
    live_.erase(it);
    usage_.used_bytes -= place.first;
    return place;
}

StreamPool::Place StreamPool::take_kept(std::pmr::set<Place>::iterator it) {
    const Place place = *it;
    kept_.erase(it);
    kept_bytes_ -= place.first;
    return place;
}

bool StreamPool::free(std::uint64_t address, const Where& where, std::uint64_t now, const SetFence& fence) {
    UniqueLock lock(mutex_);
    const auto place = take_back(address);
    if (!place) {
        return false;
    }
    Stream& stream = streams_[where.stream];
    stream.context = where.context;
    stream.freed[*place] = now;
    freed_count_.fetch_add(1, std::memory_order_relaxed);
    stream.unfenced_bytes += place->first;
    if (++stream.unfenced_blocks < kBlocksPerFence && stream.unfenced_bytes < kBytesPerFence) {
        return true;
    }
    stream.unfenced_blocks = 0;
    stream.unfenced_bytes = 0;
    if (fence) {
        lock.unlock();
        Passed passed = fence();  // may wait for the stream, and other threads may need this pool to make progress
        lock.lock();
        if (passed) {
            Stream& fenced = streams_[where.stream];  // found again: it may have been erased meanwhile
            fenced.context = where.context;
            fenced.fences.push_back({now, std::move(passed)});
        }
    }
    poll_fences();
    return_unused(lock);
    return true;
}

void StreamPool::adopt(std::uint64_t address, std::uint64_t bytes) {
    const Lock lock(mutex_);
    usage_.reserved_bytes += bytes;
    give({bytes, address});
}

bool StreamPool::holds(std::uint64_t address) const {
    const Lock lock(mutex_);
    return live_.contains(address);
}

bool StreamPool::free_complete(std::uint64_t address) {
    UniqueLock lock(mutex_);
    const auto place = take_back(address);
    if (!place) {
        return false;
    }
    put_back(*place);
    return_unused(lock);
    return true;
}

// Returns unused memory to the heap, or keeps it as the release threshold allows. Small blocks always go to the heap,
// which keeps some memory itself.
void StreamPool::put_back(const Place& place) {
    if (place.first >= DeviceHeap::kLargeBytes && usage_.reserved_bytes <= release_threshold_) {
        kept_.insert(place);
        kept_bytes_ += place.first;
        return;
    }
    usage_.reserved_bytes -= place.first;
    unused_.push_back(place.second);
}

void StreamPool::return_unused(UniqueLock& lock) {
    const std::vector<std::uint64_t> unused = std::exchange(unused_, {});
    lock.unlock(mutex_);
    for (const std::uint64_t address : unused) {
        heap_.free(address);
    }
}

void StreamPool::poll_fences() {
    for (auto it = streams_.begin(); it != streams_.end();) {
        Stream& stream = it->second;
        while (!stream.fences.empty() && stream.fences.front().passed()) {
            complete(stream, stream.fences.front().set_at + 1);
            stream.fences.pop_front();
        }
        it = stream.freed.empty() && stream.fences.empty() ? streams_.erase(it) : std::next(it);
    }
}

void StreamPool::complete(Stream& stream, std::uint64_t command) {
    for (auto it = stream.freed.begin(); it != stream.freed.end();) {
        if (it->second >= command) {
            ++it;
            continue;
        }
        const Place place = it->first;
        it = stream.freed.erase(it);
        freed_count_.fetch_sub(1, std::memory_order_relaxed);
        put_back(place);
    }
}

void StreamPool::complete(const StreamKey& key, std::uint64_t command) {
    UniqueLock lock(mutex_);
    if (const auto it = streams_.find(key); it != streams_.end()) {
        complete(it->second, command);
    }
    return_unused(lock);
}

void StreamPool::complete(const ContextState& context, std::uint64_t command) {
    UniqueLock lock(mutex_);
    for (auto& [key, stream] : streams_) {
        if (stream.context == &context) {
            complete(stream, command);
        }
    }
    return_unused(lock);
}

void StreamPool::end(const ContextState& context) {
    UniqueLock lock(mutex_);
    for (auto it = streams_.begin(); it != streams_.end();) {
        if (it->second.context == &context) {
            complete(it->second, std::numeric_limits<std::uint64_t>::max());
            it = streams_.erase(it);
        } else {
            ++it;
        }
    }
    return_unused(lock);
}

void StreamPool::move(const ContextState& context, const ContextState& other) {
    const Lock lock(mutex_);
    for (auto& [key, stream] : streams_) {
        if (stream.context == &context) {
            stream.context = &other;
        }
    }
}

void StreamPool::release(std::uint64_t keep_bytes) {
    UniqueLock lock(mutex_);
    poll_fences();
    while (!kept_.empty() && usage_.reserved_bytes > keep_bytes) {
        const Place place = take_kept(kept_.begin());
        usage_.reserved_bytes -= place.first;
        unused_.push_back(place.second);
    }
    return_unused(lock);
}

void StreamPool::set_release_threshold(std::uint64_t bytes) {
    const Lock lock(mutex_);
    release_threshold_ = bytes;
}

StreamPool::Usage StreamPool::usage() const {
    const Lock lock(mutex_);
    return usage_;
}

void StreamPool::reset_high(bool used, bool reserved) {
    const Lock lock(mutex_);
    usage_.used_high_bytes = used ? usage_.used_bytes : usage_.used_high_bytes;
    usage_.reserved_high_bytes = reserved ? usage_.reserved_bytes : usage_.reserved_high_bytes;
}

std::uint64_t StreamPool::kept_bytes() const {
    const Lock lock(mutex_);
    return kept_bytes_;
}

}  // namespace gpupool::client
