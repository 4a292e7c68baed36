#include "server/worker/memory/host_mirrors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/blocks.h"
#include "common/log.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kPollInterval{1};
constexpr int kPauseFactor = 10;  // pauses are ten times as long as polls: comparing takes at most a tenth of the time

// Maps memory at `start` if this process has nothing else there; null otherwise. The address is a hint, not a fixed
// place: the kernel follows it if the range is free. (ThreadSanitizer turns an address that it wants for itself into 0,
// which as a fixed place would be the null page.)
void* map_at(std::uint64_t start, std::uint64_t bytes, int flags, int file) {
    void* const wanted = reinterpret_cast<void*>(start);
    void* const given = mmap(wanted, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    if (given == wanted) {
        return given;
    }
    if (given != MAP_FAILED) {
        munmap(given, bytes);
    }
    log::warn("cannot map host memory at {:#x}: the address is in use in this process", start);
    return nullptr;
}

}  // namespace

bool HostMirrors::fits(std::uint64_t bytes) const {
    const std::uint64_t pinned = bytes_ + shared_bytes_;
    return pinned <= max_pinned_bytes_ && bytes <= max_pinned_bytes_ - pinned;
}

bool HostMirrors::is_shared(std::uint64_t address) const {
    const auto next = mirrors_.upper_bound(address);
    if (next == mirrors_.begin()) {
        return false;
    }
    const Mirror& mirror = std::prev(next)->second;
    return mirror.shared && address - mirror.block.address < mirror.block.bytes;
}

CUresult HostMirrors::share(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, int file,
                            Pages& pages) {
    if (bytes > max_shared_bytes_ || shared_bytes_ > max_shared_bytes_ - bytes || shared_ >= kMaxShared ||
        !fits(bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void* const given = map_at(address, bytes, MAP_SHARED, file);
    if (given == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    pages = {given, bytes};
    add(address, bytes, client_context, pages, {}, true);
    shared_bytes_ += bytes;
    ++shared_;
    return CUDA_SUCCESS;
}

void HostMirrors::add(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, const Pages& pages,
                      codec::Baseline baseline, bool shared) {
    Mirror& mirror = mirrors_[address];
    mirror.pages = pages;
    mirror.client_context = client_context;
    mirror.block = {address, reinterpret_cast<std::byte*>(address), baseline.data(), bytes};
    mirror.baseline = std::move(baseline);
    mirror.shared = shared;
}

CUresult HostMirrors::reserve(std::uint64_t address, std::uint64_t bytes, CUcontext client_context, Pages& pages) {
    if (bytes == 0 || bytes > kMaxBytes || bytes_ > kMaxBytes - bytes || mirrors_.size() - shared_ >= kMaxMirrors ||
        !fits(bytes)) {
        return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    if (address > ~std::uint64_t{0} - bytes - page) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t start = address / page * page, end = (address + bytes + page - 1) / page * page;
    void* const given = map_at(start, end - start, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (given == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    codec::Baseline baseline(bytes);
    if (baseline.data() == nullptr) {
        munmap(given, end - start);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pages = {given, end - start};
    add(address, bytes, client_context, pages, std::move(baseline), false);
    bytes_ += bytes;
    return CUDA_SUCCESS;
}

void HostMirrors::registered(std::uint64_t address) {
    if (const auto it = mirrors_.find(address); it != mirrors_.end()) {
        it->second.ready = true;
    }
}

HostMirrors::Pages HostMirrors::retire(std::uint64_t address, CUcontext& client_context) {
    const auto it = mirrors_.find(address);
    if (it == mirrors_.end() || !it->second.ready) {
        return {};
    }
    it->second.ready = false;
    client_context = it->second.client_context;
    return it->second.pages;
}

void HostMirrors::release(std::uint64_t address) {
    if (const auto it = mirrors_.find(address); it != mirrors_.end()) {
        munmap(it->second.pages.start, it->second.pages.bytes);
        if (it->second.shared) {
            shared_bytes_ -= it->second.block.bytes;
            --shared_;
        } else {
            bytes_ -= it->second.block.bytes;
        }
        mirrors_.erase(it);
    }
}

void HostMirrors::release_of(CUcontext client_context) {
    std::vector<std::uint64_t> addresses;
    for (const auto& [address, mirror] : mirrors_) {
        if (mirror.client_context == client_context && mirror.ready) {
            addresses.push_back(address);
        }
    }
    std::for_each(addresses.begin(), addresses.end(), [this](std::uint64_t address) { release(address); });
}

bool HostMirrors::write(std::span<const std::byte> record) {
    return codec::apply_changes(record, [this](std::uint64_t address) -> const codec::SharedBlock* {
        const auto it = find_block(mirrors_, address, [](const Mirror& mirror) { return mirror.block.bytes; });
        return it != mirrors_.end() && it->second.ready && !it->second.shared ? &it->second.block : nullptr;
    });
}

void HostMirrors::find(const Send& take) {
    for (const auto& [address, mirror] : mirrors_) {
        if (mirror.ready && !mirror.shared) {
            codec::find_changes(mirror.block, take);
        }
    }
}

void HostMirrors::send_found(const Send& send) {
    found_bytes_ = 0;
    for (const std::vector<std::byte>& record : std::exchange(found_, {})) {
        send(record);
    }
}

void HostMirrors::collect(const Send& send) {
    send_found(send);
    find(send);
}

bool HostMirrors::poll(const std::function<void()>& before_sending, const Send& send) {
    if (empty()) {
        return false;  // the dispatcher calls this in every iteration of its loop
    }
    const auto start = clock_.now();
    if (start < next_poll_) {
        return false;
    }
    bool changed = false;
    const auto send_all_found = [&] {
        before_sending();
        send_found(send);
    };
    find([&](std::span<const std::byte> record) {
        changed = true;
        found_.emplace_back(record.begin(), record.end());
        found_bytes_ += record.size();
        if (found_bytes_ >= kMaxFoundBytes) {
            send_all_found();
        }
    });
    if (changed) {
        send_all_found();
    }
    const auto end = clock_.now();
    next_poll_ = end + std::max<TimeSource::Duration>(kPollInterval, (end - start) * kPauseFactor);
    return changed;
}

}  // namespace gpupool::worker
