#include "client/core/memory/host_mirrors.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "client/core/memory/own_memory.h"
#include "common/blocks.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace gpupool::client {
namespace {

constexpr std::chrono::milliseconds kPollPause{1};
constexpr int kPauseFactor = 10;                  // a pause is ten times a comparison: at most a tenth of a core
constexpr std::size_t kComparedBytes = 1u << 20;  // compared in one go, with the lock held
constexpr std::size_t kCopyAlignment = 64;        // a copy has the same offset in its cache line as the original

}  // namespace

const HostMirrors::Mirror* HostMirrors::find(std::uint64_t address) const {
    const auto it = find_block(mirrors_, address, [](const Mirror& mirror) { return mirror.block.bytes; });
    return it == mirrors_.end() ? nullptr : &it->second;
}

HostMirrors::Mirror* HostMirrors::find_of_device(std::uint64_t address) const {
    const auto it = find_block(device_bases_, address, [](const Mirror* mirror) { return mirror->block.bytes; });
    return it == device_bases_.end() ? nullptr : it->second;
}

std::uint64_t HostMirrors::device_address(std::uint64_t address) const {
    if (count_.load(std::memory_order_acquire) == 0) {
        return 0;
    }
    const Lock lock(mutex_);
    const Mirror* const mirror = find(address);
    return mirror == nullptr
               ? 0
               : mirror->block.address + (address - reinterpret_cast<std::uint64_t>(mirror->block.memory));
}

std::uint64_t HostMirrors::program_address(std::uint64_t address) const {
    if (compared_.load(std::memory_order_acquire) == 0) {
        return address;
    }
    const Lock lock(mutex_);
    const Mirror* const mirror = find_of_device(address);
    return mirror == nullptr
               ? address
               : reinterpret_cast<std::uint64_t>(mirror->block.memory) + (address - mirror->block.address);
}

bool HostMirrors::is_host(std::uint64_t address) const {
    if (count_.load(std::memory_order_acquire) == 0) {
        return false;
    }
    const Lock lock(mutex_);
    if (find_of_device(address) != nullptr) {
        return true;
    }
    const Mirror* const mirror = find(address);
    return mirror != nullptr && mirror->shared;
}

bool HostMirrors::add(std::uint64_t base, std::uint64_t bytes, std::uint64_t device_base, Owner owner) {
    codec::Baseline baseline(bytes);
    if (baseline.data() == nullptr) {
        return false;
    }
    const Lock lock(mutex_);
    Mirror& mirror = mirrors_[base];
    mirror.block = {device_base, reinterpret_cast<std::byte*>(base), baseline.data(), bytes};
    mirror.baseline = std::move(baseline);
    mirror.owner = owner;
    mirror.gone = false;
    mirror.shared = false;
    device_bases_[device_base] = &mirror;
    made_.fetch_add(1, std::memory_order_release);
    count();
    return true;
}

void HostMirrors::add_shared(std::uint64_t base, std::uint64_t bytes) {
    const Lock lock(mutex_);
    Mirror& mirror = mirrors_[base];
    mirror.block = {base, reinterpret_cast<std::byte*>(base), nullptr, bytes};
    mirror.shared = true;
    count();
}

bool HostMirrors::is_shared(std::uint64_t address) const {
    if (count_.load(std::memory_order_acquire) == 0) {
        return false;
    }
    const Lock lock(mutex_);
    const Mirror* const mirror = find(address);
    return mirror != nullptr && mirror->shared;
}

void HostMirrors::count() {
    count_.store(mirrors_.size(), std::memory_order_release);
    compared_.store(device_bases_.size(), std::memory_order_release);
}

void HostMirrors::remove(std::uint64_t base) {
    const Lock publishing(publishing_);
    const Lock lock(mutex_);
    if (const auto it = mirrors_.find(base); it != mirrors_.end()) {
        if (!it->second.shared) {
            device_bases_.erase(it->second.block.address);
        }
        mirrors_.erase(it);
    }
    count();
}

void HostMirrors::leave_alone(Mirror& mirror) {
    mirror.gone = true;
    log::warn(
        "registered host memory ({} bytes at {}) cannot be used any more: was it unmapped? The GPU keeps what it has",
        mirror.block.bytes, static_cast<const void*>(mirror.block.memory));
}

void HostMirrors::compare(Mirror& mirror, codec::SharedBlock part,
                          const std::function<void(std::span<const std::byte>)>& emit) {
    if (mirror.owner == Owner::application) {
        copy_.resize(kComparedBytes + 2 * kCopyAlignment);
        const auto shift = [](const std::byte* at) { return reinterpret_cast<std::uint64_t>(at) % kCopyAlignment; };
        std::byte* const copy = copy_.data() + (kCopyAlignment - shift(copy_.data())) + shift(part.memory);
        if (!read_own_memory({copy, part.bytes}, part.memory)) {
            leave_alone(mirror);
            return;
        }
        part.memory = copy;
    }
    codec::find_changes(part, emit);
}

CUresult HostMirrors::publish(const std::function<CUresult(std::span<const std::byte>)>& send,
                              const std::function<Search()>& search) {
    const Lock publishing(publishing_);
    const auto bounds = [&] { return search ? search().bounds : AddressBounds{}; };
    const std::uint64_t added = search ? search().added : 0;
    // Sending may wait for the other side, whose data the receiving thread applies under mutex_. So never send with
    // mutex_ held.
    std::vector<std::byte>& records = to_send_.records;
    std::vector<std::size_t>& ends = to_send_.ends;
    std::vector<std::uint64_t>& bases = to_send_.bases;
    bases.clear();
    const auto send_all = [&]() GP_REQUIRES(publishing_) {
        CUresult result = CUDA_SUCCESS;
        std::size_t begin = 0;
        for (const std::size_t end : ends) {
            result = result == CUDA_SUCCESS ? send(std::span(records).subspan(begin, end - begin)) : result;
            begin = end;
        }
        records.clear();
        ends.clear();
        return result;
    };
    {
        const Lock lock(mutex_);
        for (const auto& [base, mirror] : mirrors_) {
            if (!mirror.shared) {
                bases.push_back(base);
            }
        }
    }
    for (const std::uint64_t base : bases) {
        for (std::uint64_t offset = 0;; offset += kComparedBytes) {
            {
                const Lock lock(mutex_);
                const auto it = mirrors_.find(base);
                if (it == mirrors_.end() || it->second.gone || it->second.shared || offset >= it->second.block.bytes) {
                    break;
                }
                Mirror* const mirror = &it->second;
                codec::SharedBlock part = mirror->block;
                part.address += offset;
                part.memory += offset;
                part.baseline += offset;
                part.bytes = std::min<std::size_t>(kComparedBytes, mirror->block.bytes - offset);
                const bool searches_all = mirror->searched != added;
                compare(*mirror, part, [&](std::span<const std::byte> record) GP_REQUIRES(publishing_) {
                    records.insert(records.end(), record.begin(), record.end());
                    ends.push_back(records.size());
                    if (!searches_all) {
                        search_changes(part, record, bounds());
                    }
                });
                if (searches_all) {
                    search_part(part, bounds());
                }
                if (offset + part.bytes >= mirror->block.bytes) {
                    mirror->searched = added;
                }
            }
            if (const CUresult result = send_all(); result != CUDA_SUCCESS) {
                return result;
            }
        }
    }
    search_shared(bounds());
    return CUDA_SUCCESS;
}

void HostMirrors::search_shared(const AddressBounds& bounds) {
    if (bounds.begin >= bounds.end) {
        return;
    }
    const Lock lock(mutex_);
    std::size_t left = kMaxSharedBytes;
    for (const auto& [base, mirror] : mirrors_) {
        const codec::SharedBlock& block = mirror.block;
        if (mirror.shared && block.bytes <= std::min(left, kMaxSearchedBytes)) {
            left -= block.bytes;
            search_part({block.address, block.memory, block.memory, block.bytes}, bounds);
        }
    }
}

void HostMirrors::search_part(const codec::SharedBlock& part, const AddressBounds& bounds) {
    if (bounds.begin >= bounds.end) {
        return;
    }
    std::vector<std::uint64_t> found;
    find_addresses({part.baseline, part.bytes}, part.address, bounds,
                   [&found](std::uint64_t address) { found.push_back(address); });
    found_.insert(found_.end(), found.begin(), found.end());
    any_found_.store(!found_.empty(), std::memory_order_relaxed);
}

// Searches the window that the record is about; a record has only the bytes that were changed.
void HostMirrors::search_changes(const codec::SharedBlock& part, std::span<const std::byte> record,
                                 const AddressBounds& bounds) {
    codec::ChangeHeader header{};
    std::memcpy(&header, record.data(), sizeof header);
    const std::uint64_t offset = header.address - part.address;  // negative if the window begins before the part
    const std::uint64_t begin = header.address < part.address ? 0 : offset;
    const std::uint64_t end = std::min<std::uint64_t>(offset + header.window_bytes, part.bytes);
    codec::SharedBlock window = part;
    window.address += begin;
    window.baseline += begin;
    window.bytes = end - begin;
    search_part(window, bounds);
}

std::vector<std::uint64_t> HostMirrors::take_found() {
    if (!any_found_.load(std::memory_order_relaxed)) {
        return {};
    }
    const Lock publishing(publishing_);
    any_found_.store(false, std::memory_order_relaxed);
    return std::exchange(found_, {});
}

bool HostMirrors::apply(std::span<const std::byte> record) {
    const Lock lock(mutex_);
    bool gone = false;
    const bool applied =
        codec::apply_changes(record, [&](std::uint64_t address) GP_REQUIRES(mutex_) -> const codec::SharedBlock* {
            Mirror* const mirror = find_of_device(address);
            if (mirror == nullptr) {
                return nullptr;
            }
            if (mirror->owner == Owner::application && !mirror->gone) {
                const std::uint64_t offset = address - mirror->block.address;
                const std::size_t bytes =
                    std::min<std::size_t>(codec::kChangeWindowBytes, mirror->block.bytes - offset);
                if (!own_memory_is_writable(mirror->block.memory + offset, bytes)) {
                    leave_alone(*mirror);
                }
            }
            gone = mirror->gone;
            return gone ? nullptr : &mirror->block;
        });
    return applied || gone;
}

void HostMirrors::start_polling(std::function<bool()> publish) {
    {
        const Lock lock(mutex_);
        if (std::exchange(polling_, true)) {
            return;
        }
    }
    // Never ends, like the session.
    quiet_thread("gpupool-mirrors", [this, publish = std::move(publish)] {
        TimeSource::Duration pause = kPollPause;
        while (true) {
            clock_.sleep_for(pause);
            const auto start = clock_.now();
            if (any() && !publish()) {
                return;
            }
            const auto took = clock_.now() - start;
            // Without a mirror, only check now and then whether there is one again.
            pause = any() ? std::max<TimeSource::Duration>(kPollPause, took * kPauseFactor) : kPollPause * 100;
        }
    }).detach();
}

}  // namespace gpupool::client
