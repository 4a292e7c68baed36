#include "server/supervision/runtime_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace gpupool::supervision {

namespace {

constexpr const char* kSocketName = "supervision.sock";
constexpr mode_t kFolderMode = 0711, kSocketMode = 0666;  // open to all users that get there
constexpr int kBacklog = 1024;                            // all workers of a host may reconnect at once
constexpr std::chrono::milliseconds kLockTimeout{2000};

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("the path {} is too long for a socket (at most {} bytes): set a shorter "
                                 "runtime_directory",
                                 path, sizeof(address.sun_path) - 1)};
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

// An ending daemon removes its lock file, so check that the path still names the locked file.
bool still_named(int descriptor, const std::string& path) {
    struct stat held {};
    struct stat named {};
    return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

// The folder of one address, in the private one.
Status check_folder(const std::string& path) {
    struct stat facts {};
    if (::lstat(path.c_str(), &facts) != 0) {
        return system_error(fmt::format("cannot make the directory {}", path), errno);
    }
    if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid()) {
        return Error{ErrorCode::refused, fmt::format("{} is not a directory of this user: remove it", path)};
    }
    if ((facts.st_mode & 07777) != kFolderMode && ::chmod(path.c_str(), kFolderMode) != 0) {
        return system_error(fmt::format("cannot change the mode of {}", path), errno);
    }
    return {};
}

Result<UniqueFd> lock_file(const std::string& directory) {
    const std::string path = directory + "/lock";
    const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
    while (true) {
        UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (lock.get() < 0) {
            return system_error(fmt::format("cannot open {}", path), errno);
        }
        const bool locked = ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno != EWOULDBLOCK && errno != EINTR) {
            return system_error(fmt::format("cannot lock {}", path), errno);
        }
        if (locked && still_named(lock.get(), path)) {
            return lock;
        }
        if (std::chrono::steady_clock::now() > deadline) {
            return Error{ErrorCode::refused,
                         fmt::format("another gpupoold uses {}: stop it, or set another runtime_directory", directory)};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

}  // namespace

Status make_private_directory(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return system_error(fmt::format("cannot make the directory {}", path), errno);
    }
    struct stat facts {};
    if (::lstat(path.c_str(), &facts) != 0) {
        return system_error(fmt::format("cannot read the status of {}", path), errno);
    }
    if (!S_ISDIR(facts.st_mode)) {
        return Error{ErrorCode::refused, fmt::format("{} is not a directory: remove it, or set another one", path)};
    }
    if (facts.st_uid != ::geteuid()) {
        return Error{ErrorCode::refused,
                     fmt::format("{} belongs to user {}, not to this user ({}): set another directory", path,
                                 facts.st_uid, ::geteuid())};
    }
    if ((facts.st_mode & 0077) == 0) {
        return {};
    }
    // Other users may enter it. If its name starts with gpupool it is ours, and is closed before anything is put into
    // it (systemd creates such directories with mode 0755). Any other directory may be in use by others, so its mode
    // stays.
    if (!path.substr(path.rfind('/') + 1).starts_with("gpupool")) {
        return Error{
            ErrorCode::refused,
            fmt::format("other users may enter {}: chmod 700 it, or set a dedicated directory such as {}/gpupool", path,
                        path)};
    }
    if (::chmod(path.c_str(), 0700) != 0) {
        return system_error(fmt::format("cannot make {} private", path), errno);
    }
    return {};
}

std::string default_runtime_root() {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime != nullptr && runtime[0] == '/') {
        return std::string(runtime) + "/gpupool";
    }
    if (::geteuid() == 0 && ::access("/run", W_OK) == 0) {
        return "/run/gpupool";
    }
    return fmt::format("/tmp/gpupool-{}", ::geteuid());
}

Result<RuntimeDirectory> RuntimeDirectory::claim(const std::string& root, const std::string& name) {
    RuntimeDirectory directory;
    directory.path_ = fmt::format("{}/{}", root, name);
    Status made = make_private_directory(root);
    if (made) {
        directory.made_ = ::mkdir(directory.path_.c_str(), kFolderMode) == 0;
        made = check_folder(directory.path_);
    }
    if (!made) {
        return made.error().within("runtime_directory");
    }
    if (const auto fits = address_of(directory.supervision_path()); !fits) {
        return fits.error();
    }
    auto lock = lock_file(directory.path_);
    if (!lock) {
        return lock.error();
    }
    directory.lock_ = std::move(lock).value();
    return directory;
}

Result<UniqueFd> RuntimeDirectory::listen() const {
    const std::string path = supervision_path();
    const auto address = address_of(path);
    if (!address) {
        return address.error();
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) {
        return system_error("socket", errno);
    }
    ::unlink(path.c_str());
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(sockaddr_un)) != 0 ||
        ::chmod(path.c_str(), kSocketMode) != 0 || ::listen(socket.get(), kBacklog) != 0) {
        return system_error(fmt::format("cannot listen at {}", path), errno);
    }
    return socket;
}

Result<UniqueFd> RuntimeDirectory::open() const {
    UniqueFd folder(::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder) {
        return system_error(fmt::format("cannot open {}", path_), errno);
    }
    return folder;
}

void RuntimeDirectory::abandon() noexcept {
    if (made_) {
        remove();
        return;
    }
    ::unlink(supervision_path().c_str());
    lock_.reset();
}

void RuntimeDirectory::remove() noexcept {
    if (path_.empty()) {
        return;
    }
    ::unlink((path_ + "/supervision.sock").c_str());
    ::unlink((path_ + "/lock").c_str());
    ::rmdir(path_.c_str());
    lock_.reset();
}

Result<UniqueFd> connect_supervision(const std::string& path, int folder) {
    const auto address = address_of(folder < 0 ? path : fmt::format("/proc/self/fd/{}/{}", folder, kSocketName));
    if (!address) {
        return address.error();
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) {
        return system_error("socket", errno);
    }
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(sockaddr_un)) != 0) {
        return Error{ErrorCode::unavailable, fmt::format("no daemon at {}: {}", path, std::strerror(errno))};
    }
    return socket;
}

}  // namespace gpupool::supervision
