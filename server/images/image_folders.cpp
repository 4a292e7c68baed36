#include "server/images/image_folders.h"

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
#include <string_view>
#include <vector>

#include "common/digest.h"
#include "common/log.h"

namespace gpupool {

namespace {

constexpr std::int64_t kAbandonedAfterSeconds = 600;  // for a file whose writer has died
// Limit on the files of a folder that are listed. A folder may have far more than it should, if writers never paused.
// Files beyond the limit are removed without regard to their age.
constexpr std::size_t kMaxListed = 4 * ImageFolders::kMaxFiles;
constexpr const char* kLock = "lock";
constexpr const char* kJit = "jit";
constexpr mode_t kOpenToAll = 0777;

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

// A folder that all users may use. It may exist, and then belong to this user or, as one made by a worker, to another.
Result<UniqueFd> make_open_folder(int at, const char* name) {
    if (::mkdirat(at, name, kOpenToAll) != 0 && errno != EEXIST) {
        return system_error(fmt::format("cannot make the folder {}", name), errno);
    }
    UniqueFd folder(open_folder(at, name));
    struct stat facts {};
    if (!folder || ::fstat(folder.get(), &facts) != 0) {
        return system_error(fmt::format("cannot open the folder {}", name), errno);
    }
    if ((facts.st_mode & kOpenToAll) != kOpenToAll && ::fchmod(folder.get(), kOpenToAll) != 0) {
        return system_error(fmt::format("cannot open the folder {} to the workers", name), errno);
    }
    return folder;
}

std::int64_t nanoseconds(const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
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
    return std::max(static_cast<std::uint64_t>(facts.st_blocks) * kBlockBytes, ImageFolders::kLeastFileBytes);
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
        if (std::string_view(file).starts_with(ImageFolders::kBeingWritten)) {
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

}  // namespace

Result<UniqueFd> ImageFolders::open(const std::string& tenant) const {
    const UniqueFd root(open_folder(AT_FDCWD, root_.c_str()));
    if (!root) {
        return system_error("cannot open " + root_, errno);
    }
    auto folder = make_open_folder(root.get(), tenant.c_str());
    if (!folder) {
        return folder.error().within(root_);
    }
    // Without it, the driver only caches nothing.
    if (const auto jit = make_open_folder(folder->get(), kJit); !jit) {
        log::debug("the driver keeps no compiled code for a tenant: {}", jit.error().message);
    }
    return folder;
}

bool ImageFolders::has_changed(int root) {
    // The clock of files may be too coarse to tell two changes from each other, so a recent change counts twice.
    constexpr std::int64_t kRecentNanoseconds = 1'000'000'000;
    timespec clock{};
    ::clock_gettime(CLOCK_REALTIME, &clock);
    const std::int64_t present_ns = nanoseconds(clock);
    bool changed = false;
    each_entry(open_folder(root, "."), [&](const char* name) {
        struct stat facts {};
        if (::fstatat(root, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(facts.st_mode)) {
            const std::int64_t changed_ns = nanoseconds(facts.st_mtim);
            std::int64_t& last_ns = changed_ns_[name];
            changed |= last_ns != changed_ns || present_ns - changed_ns < kRecentNanoseconds;
            last_ns = changed_ns;
        }
    });
    return changed;
}

void ImageFolders::trim(std::uint64_t limit_bytes) {
    const UniqueFd root(open_folder(AT_FDCWD, root_.c_str()));
    // Only one process trims at a time: two would each remove the excess.
    const UniqueFd lock(::openat(root.get(), kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!root || !lock || ::flock(lock.get(), LOCK_EX) != 0 || !has_changed(root.get())) {
        return;
    }
    std::vector<Tenant> tenants;
    std::uint64_t total = 0;
    each_entry(open_folder(root.get(), "."), [&](const char* name) {
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
    while (total > limit_bytes) {
        remove_oldest_of(*std::max_element(tenants.begin(), tenants.end(),
                                           [](const Tenant& a, const Tenant& b) { return a.bytes < b.bytes; }));
    }
}

}  // namespace gpupool
