#include "server/supervision/job_account.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace gpupool::supervision {
namespace {

constexpr std::uint64_t kMagic = 0x6770756163637431;  // changes with the layout
constexpr std::uint64_t kMost = ~std::uint64_t{0};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// A worker that was stopped while it held the lock must not hold up another one for longer.
constexpr long kMaxWaitNanoseconds = 100'000'000;

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free);

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
    return a + std::min(b, kMost - a);
}

Result<void*> map_page(int descriptor, std::size_t bytes) {
    void* const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (place == MAP_FAILED) {
        return system_error("cannot map the memory of an account", errno);
    }
    return place;
}

}  // namespace

struct JobAccount::Page {
    struct Device {
        std::array<char, 64> uuid;
        Counter quota_bytes, context_bytes;
    };

    std::uint64_t magic;
    std::uint64_t devices;
    // Makes the check and the change in take() one step. Robust: it outlives a worker that dies with it.
    pthread_mutex_t mutex;
    std::array<Device, kMaxDevices> device;
    std::array<std::array<Counter, kMaxSessions>, kMaxDevices> used_bytes;

    bool lock();
    void unlock() { ::pthread_mutex_unlock(&mutex); }
};

bool JobAccount::Page::lock() {
    // Nearly always free: then no clock is read. ThreadSanitizer knows of EOWNERDEAD here, but not below.
    int result = ::pthread_mutex_trylock(&mutex);
    if (result == EBUSY) {
        timespec until{};
        ::clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += kMaxWaitNanoseconds;
        if (until.tv_nsec >= 1'000'000'000) {
            ++until.tv_sec;
            until.tv_nsec -= 1'000'000'000;
        }
        result = ::pthread_mutex_timedlock(&mutex, &until);
    }
    if (result == EOWNERDEAD) {
        ::pthread_mutex_consistent(&mutex);  // it guards no state that could be half changed
        return true;
    }
    return result == 0;
}

Result<JobAccount> JobAccount::make(const std::vector<AccountDevice>& devices) {
    if (devices.size() > kMaxDevices) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("an account has room for {} devices, not {}", kMaxDevices, devices.size())};
    }
    UniqueFd descriptor(::memfd_create("gpupool-account", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!descriptor) {
        return system_error("memfd_create", errno);
    }
    if (::ftruncate(descriptor.get(), sizeof(Page)) != 0 || ::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
        return system_error("cannot size the memory of an account", errno);
    }
    const auto place = map_page(descriptor.get(), sizeof(Page));
    if (!place) {
        return place.error();
    }
    Page* const page = new (*place) Page{};
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    ::pthread_mutex_init(&page->mutex, &attributes);
    ::pthread_mutexattr_destroy(&attributes);
    page->devices = devices.size();
    for (std::size_t i = 0; i < devices.size(); ++i) {
        devices[i].uuid.copy(page->device[i].uuid.data(), page->device[i].uuid.size() - 1);
        page->device[i].quota_bytes = devices[i].quota_bytes;
        page->device[i].context_bytes = devices[i].context_bytes;
    }
    page->magic = kMagic;
    return JobAccount(std::move(descriptor), page);
}

Result<JobAccount> JobAccount::adopt(UniqueFd descriptor) {
    struct stat facts {};
    if (::fstat(descriptor.get(), &facts) != 0 || facts.st_size != static_cast<off_t>(sizeof(Page)) ||
        (::fcntl(descriptor.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
        return Error{ErrorCode::invalid_input, "the memory of an account has another size, or could shrink"};
    }
    const auto place = map_page(descriptor.get(), sizeof(Page));
    if (!place) {
        return place.error();
    }
    JobAccount account(std::move(descriptor), static_cast<Page*>(*place));
    if (account.page_->magic != kMagic || account.page_->devices > kMaxDevices) {
        return Error{ErrorCode::invalid_input, "the memory of an account was written by another version of gpupool"};
    }
    return account;
}

JobAccount::JobAccount(JobAccount&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), page_(std::exchange(other.page_, nullptr)) {}

JobAccount& JobAccount::operator=(JobAccount&& other) noexcept {
    if (this != &other) {
        unmap();
        descriptor_ = std::move(other.descriptor_);
        page_ = std::exchange(other.page_, nullptr);
    }
    return *this;
}

JobAccount::~JobAccount() {
    unmap();
}

void JobAccount::unmap() {
    if (page_ != nullptr) {
        ::munmap(page_, sizeof(Page));
        page_ = nullptr;
    }
}

std::size_t JobAccount::device_count() const {
    // Another process of the job may have written anything there since it was checked.
    return std::min<std::size_t>(page_->devices, kMaxDevices);
}

std::optional<std::size_t> JobAccount::find(std::string_view uuid) const {
    for (std::size_t i = 0; i < device_count(); ++i) {
        const auto& text = page_->device[i].uuid;
        if (uuid == std::string_view(text.data(), ::strnlen(text.data(), text.size()))) {
            return i;
        }
    }
    return std::nullopt;
}

std::uint64_t JobAccount::quota_bytes(std::size_t device) const {
    return page_->device[device].quota_bytes;
}

void JobAccount::set_quota(std::size_t device, std::uint64_t bytes) {
    page_->device[device].quota_bytes = bytes;
}

std::uint64_t JobAccount::context_bytes(std::size_t device) const {
    return page_->device[device].context_bytes;
}

std::uint64_t JobAccount::used_bytes(std::size_t slot, std::size_t device) const {
    return page_->used_bytes[device][slot];
}

std::uint64_t JobAccount::used_bytes(std::size_t device) const {
    std::uint64_t used = 0;
    for (const Counter& one : page_->used_bytes[device]) {
        used = sum(used, one);
    }
    return used;
}

bool JobAccount::fits(std::size_t device, std::uint64_t bytes) const {
    const std::uint64_t quota = quota_bytes(device), used = used_bytes(device);
    const std::uint64_t most = quota == 0 ? kMost : quota;
    return bytes <= most && used <= most - bytes;
}

bool JobAccount::take(std::size_t slot, std::size_t device, std::uint64_t bytes) {
    if (!page_->lock()) {
        return false;
    }
    const bool fit = fits(device, bytes);
    if (fit) {
        page_->used_bytes[device][slot] += bytes;
    }
    page_->unlock();
    return fit;
}

void JobAccount::force(std::size_t slot, std::size_t device, std::uint64_t bytes) {
    Counter& used = page_->used_bytes[device][slot];
    std::uint64_t before = used;
    while (!used.compare_exchange_weak(before, sum(before, bytes))) {
    }
}

void JobAccount::give_back(std::size_t slot, std::size_t device, std::uint64_t bytes) {
    Counter& used = page_->used_bytes[device][slot];
    std::uint64_t before = used;
    while (!used.compare_exchange_weak(before, before - std::min(before, bytes))) {
    }
}

void JobAccount::clear(std::size_t slot) {
    for (auto& device : page_->used_bytes) {
        device[slot] = 0;
    }
}

}  // namespace gpupool::supervision
