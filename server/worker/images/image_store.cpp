#include "server/worker/images/image_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/digest.h"
#include "common/log.h"
#include "protocol/calls/image_hash.h"
#include "server/images/image_folders.h"

namespace gpupool::worker {
namespace {

// Every worker of the tenant may read the file, and mark it as used, whatever its user. Others cannot reach the folder.
constexpr mode_t kOpenToAll = 0666;

std::string name_of(const ImageHash& hash) {
    Digest digest;
    static_assert(sizeof digest == sizeof hash);
    std::memcpy(digest.data(), &hash, sizeof digest);
    return to_string(digest);
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

ImageStore::ImageStore(UniqueFd folder, std::uint64_t limit_bytes, TimeSource& clock)
    : clock_(clock), folder_(std::move(folder)), limit_bytes_(limit_bytes) {}

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
        lock.unlock();
        Status written = write(next.hash, std::span(*next.image).first(next.image->size() - 1));
        if (!written && !complained_) {
            complained_ = true;
            log::warn("code images cannot be kept: {}", written.error().message);
        }
        lock.lock();
        waiting_bytes_ -= next.image->size();
        waiting_.pop_front();
        changed_.notify_all();
    }
}

Status ImageStore::write(const ImageHash& hash, std::span<const std::byte> content) {
    const std::string name = name_of(hash);
    const std::string temporary = fmt::format("{}{}-{:.16}", ImageFolders::kBeingWritten, ::getpid(), name);
    const UniqueFd file(
        ::openat(folder_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kOpenToAll));
    if (!file || ::fchmod(file.get(), kOpenToAll) != 0) {
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

}  // namespace gpupool::worker
