#include "server/worker/images/image_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <system_error>

#include "common/digest.h"
#include "common/log.h"
#include "protocol/calls/image_hash.h"

namespace gpupool::worker {
namespace {

constexpr const char* kBeingWritten = ".new-";
constexpr std::int64_t kAbandonedAfterSeconds = 600;  // for a file whose writer has died
// Limit on the files of a folder that are listed. A folder may have far more than it should, if writers never paused.
// Files beyond the limit are removed without regard to their age.
constexpr std::size_t kMaxListed = 4 * ImageStore::kMaxFiles;
constexpr const char* kLock = "lock";

std::string name_of(const ImageHash& hash) {
    Digest digest;
    static_assert(sizeof digest == sizeof hash);
    std::memcpy(digest.data(), &hash, sizeof digest);
    return to_string(digest);
}

// Calls `see` with each entry's name; with none if the folder cannot be read. Takes ownership of the descriptor.
void each_entry(int folder, const std::function<void(const char* name)>& see) {
    DIR* const listing = folder < 0 ? nullptr : ::fdopendir(folder);
    if (listing == nullptr) {
        if (folder >= 0) {
            ::close(folder);
        }
        return;
    }
    while (const dirent* const entry = ::readdir(listing)) {
        if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) {
            see(entry->d_name);
        }
    }
    ::closedir(listing);
}

// Is it a file of the store? Other files are left alone.
bool is_kept_image(std::string_view name) {
    constexpr std::size_t kDigits = 2 * sizeof(Digest);
    return name.size() == kDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

int open_folder(int at, const char* name) {
    return ::openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

struct File {
    std::string name;
    std::uint64_t bytes = 0;
    timespec used{};
};

struct Tenant {
    std::string name;
    std::vector<File> files;  // most recently used first
    std::uint64_t bytes = 0;
};

std::uint64_t disk_bytes(const struct stat& facts) {
    constexpr std::uint64_t kBlockBytes = 512;  // the unit of stat(), independent of the file system
    return std::max(static_cast<std::uint64_t>(facts.st_blocks) * kBlockBytes, ImageStore::kLeastFileBytes);
}

// Lists the images of one tenant, and removes temporary files of writers that died.
Tenant list_tenant(int root, const char* name) {
    Tenant tenant;
    tenant.name = name;
    const UniqueFd folder(open_folder(root, name));
    each_entry(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0), [&](const char* file) {
        struct stat facts {};
        if (::fstatat(folder.get(), file, &facts, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(facts.st_mode)) {
            return;
        }
        if (std::string_view(file).starts_with(kBeingWritten)) {
            if (std::time(nullptr) - facts.st_mtim.tv_sec > kAbandonedAfterSeconds) {
                ::unlinkat(folder.get(), file, 0);
            }
            return;
        }
        if (!is_kept_image(file)) {
            return;
        }
        if (tenant.files.size() >= kMaxListed) {
            ::unlinkat(folder.get(), file, 0);
            return;
        }
        const std::uint64_t bytes = disk_bytes(facts);
        tenant.files.push_back({file, bytes, facts.st_mtim});
        tenant.bytes += bytes;
    });
    std::sort(tenant.files.begin(), tenant.files.end(), [](const File& a, const File& b) {
        return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec > b.used.tv_sec : a.used.tv_nsec > b.used.tv_nsec;
    });
    return tenant;
}

Status write_all(int file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(file, bytes.data(), bytes.size());
        if (written < 0 && errno != EINTR) {
            return system_error("write", errno);
        }
        bytes = bytes.subspan(written < 0 ? 0 : static_cast<std::size_t>(written));
    }
    return {};
}

bool read_all(int file, std::span<std::byte> room) {
    while (!room.empty()) {
        const ssize_t got = ::read(file, room.data(), room.size());
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        room = room.subspan(got < 0 ? 0 : static_cast<std::size_t>(got));
    }
    return true;
}

}  // namespace

Result<std::unique_ptr<ImageStore>> ImageStore::open(const std::string& root, const std::string& tenant,
                                                     std::uint64_t limit_bytes, TimeSource& clock) {
    const std::string path = root + "/" + tenant;
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return system_error("cannot make " + path, errno);
    }
    std::unique_ptr<ImageStore> store(new ImageStore(clock));
    store->root_ = root;
    store->limit_bytes_ = limit_bytes;
    store->folder_.reset(open_folder(AT_FDCWD, path.c_str()));
    if (!store->folder_) {
        return system_error("cannot open " + path, errno);
    }
    return store;
}

ImageStore::~ImageStore() {
    {
        const Lock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

ImageBytes ImageStore::find(const ImageHash& hash) {
    const std::string name = name_of(hash);
    const UniqueFd file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat facts {};
    if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
        return nullptr;
    }
    const auto bytes = static_cast<std::uint64_t>(facts.st_size);
    if (bytes <= kMaxImageBytes) {
        auto image = std::make_shared<std::vector<std::byte>>(bytes + 1);  // with the NUL
        const auto content = std::span(*image).first(bytes);
        if (read_all(file.get(), content) && hash_of(content) == hash) {
            ::futimens(file.get(), nullptr);  // marks it as used now
            return image;
        }
    }
    log::warn("code image {} is damaged: removed", name);
    ::unlinkat(folder_.get(), name.c_str(), 0);
    return nullptr;
}

void ImageStore::keep(const ImageHash& hash, ImageBytes image) {
    {
        const Lock lock(mutex_);
        if (image->size() > limit_bytes_ || waiting_bytes_ + image->size() > kMaxWaitingBytes || !start_writing()) {
            return;
        }
        waiting_bytes_ += image->size();
        waiting_.push_back({hash, std::move(image)});
    }
    changed_.notify_all();
}

// Called with the lock held. False if the thread cannot be started: then the image is not kept.
bool ImageStore::start_writing() {
    if (thread_.joinable()) {
        return true;
    }
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
        log::warn("cannot start the thread that writes code images, an image is not kept: {}", error.what());
        return false;
    }
    return true;
}

void ImageStore::finish(std::chrono::milliseconds timeout) {
    UniqueLock lock(mutex_);
    clock_.wait_for(changed_, lock, timeout, [&]() GP_REQUIRES(mutex_) { return waiting_.empty(); });
}

void ImageStore::run() {
    UniqueLock lock(mutex_);
    while (true) {
        clock_.wait(changed_, lock, [&]() GP_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
        if (stopping_) {
            return;
        }
        const Waiting next = waiting_.front();
        const bool last = waiting_.size() == 1 || ++since_trim_ >= kTrimEvery;
        lock.unlock();
        Status written = write(next.hash, std::span(*next.image).first(next.image->size() - 1));
        if (!written && !complained_) {
            complained_ = true;
            log::warn("code images cannot be kept in {}: {}", root_, written.error().message);
        }
        if (last) {
            since_trim_ = 0;
            trim();
        }
        lock.lock();
        waiting_bytes_ -= next.image->size();
        waiting_.pop_front();
        changed_.notify_all();
    }
}

Status ImageStore::write(const ImageHash& hash, std::span<const std::byte> content) {
    const std::string name = name_of(hash);
    const std::string temporary = fmt::format("{}{}-{:.16}", kBeingWritten, ::getpid(), name);
    const UniqueFd file(
        ::openat(folder_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) {
        return system_error("open", errno);
    }
    Status written = write_all(file.get(), content);
    if (written && ::renameat(folder_.get(), temporary.c_str(), folder_.get(), name.c_str()) != 0) {
        written = system_error("rename", errno);
    }
    if (!written) {
        ::unlinkat(folder_.get(), temporary.c_str(), 0);
    }
    return written;
}

void ImageStore::trim() {
    const UniqueFd root(open_folder(AT_FDCWD, root_.c_str()));
    // Only one process trims at a time: two would each remove the excess.
    const UniqueFd lock(::openat(root.get(), kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!root || !lock || ::flock(lock.get(), LOCK_EX) != 0) {
        return;
    }
    std::vector<Tenant> tenants;
    std::uint64_t total = 0;
    each_entry(::fcntl(root.get(), F_DUPFD_CLOEXEC, 0), [&](const char* name) {
        tenants.push_back(list_tenant(root.get(), name));
        total += tenants.back().bytes;
    });
    const auto remove_oldest_of = [&](Tenant& tenant) {
        const File oldest = tenant.files.back();
        const UniqueFd folder(open_folder(root.get(), tenant.name.c_str()));
        log::debug("removed the code image {} to make room", oldest.name);
        ::unlinkat(folder.get(), oldest.name.c_str(), 0);
        tenant.files.pop_back();
        tenant.bytes -= oldest.bytes;
        total -= oldest.bytes;
    };
    for (Tenant& tenant : tenants) {
        while (tenant.files.size() > kMaxFiles) {
            remove_oldest_of(tenant);
        }
    }
    while (total > limit_bytes_) {
        remove_oldest_of(*std::max_element(tenants.begin(), tenants.end(),
                                           [](const Tenant& a, const Tenant& b) { return a.bytes < b.bytes; }));
    }
}

}  // namespace gpupool::worker
