#include "server/isolation/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace gpupool::isolation {

namespace {

// The kernel's interface, from linux/landlock.h of version 6.12: the headers of older distributions lack parts of it.
struct RulesetAttributes {
    std::uint64_t handled_files, handled_network, scoped;
};
struct [[gnu::packed]] PathRule {
    std::uint64_t allowed;
    std::int32_t folder;
};
constexpr unsigned kAskVersion = 1;
constexpr int kPathRule = 1;
constexpr int kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;

constexpr std::uint64_t kWriteFile = 1u << 1, kReadFile = 1u << 2, kReadFolder = 1u << 3, kRemoveFolder = 1u << 4,
                        kRemoveFile = 1u << 5, kMakeFolder = 1u << 7, kMakeFile = 1u << 8, kAllOfVersion1 = 0x1fff,
                        kTruncate = 1u << 14, kDeviceControl = 1u << 15;
constexpr std::uint64_t kAllTcp = 3;     // bind and connect
constexpr std::uint64_t kAllScopes = 3;  // abstract Unix sockets and signals

constexpr std::uint64_t kRead = kReadFile | kReadFolder;
constexpr std::uint64_t kWrite = kRead | kWriteFile | kRemoveFolder | kRemoveFile | kMakeFolder | kMakeFile | kTruncate;
constexpr std::uint64_t kUseDevice = kReadFile | kWriteFile | kDeviceControl;

// Programs and libraries, what a driver reads about the machine, and what the C library reads. Of /proc and /etc only
// these files: others there tell of other processes, or hold secrets.
constexpr const char* kReadable[] = {"/usr", "/lib", "/lib64", "/opt", "/sys", "/run/nvidia", "/run/opengl-driver",
                                     "/etc/ld.so.cache", "/etc/nvidia", "/etc/localtime", "/etc/nsswitch.conf",
                                     "/etc/passwd", "/etc/group",
                                     // of the C library, OpenMP, and NVIDIA's driver
                                     "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/devices", "/proc/modules",
                                     "/proc/version", "/proc/filesystems", "/proc/driver", "/proc/sys"};
constexpr const char* kDevices[] = {"/dev/null",           "/dev/zero",        "/dev/urandom",
                                    "/dev/random",         "/dev/nvidiactl",   "/dev/nvidia-uvm",
                                    "/dev/nvidia-modeset", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"};

std::uint64_t handled_files(int version) {
    std::uint64_t rights = kAllOfVersion1;
    rights |= version >= 2 ? 1u << 13 : 0;  // REFER: never allowed, and so before version 2
    rights |= version >= 3 ? kTruncate : 0;
    rights |= version >= 5 ? kDeviceControl : 0;
    return rights;
}

class Builder {
  public:
    explicit Builder(int version) : handled_(handled_files(version)) {
        const RulesetAttributes wanted{handled_, version >= 4 ? kAllTcp : 0, version >= 6 ? kAllScopes : 0};
        const std::size_t bytes = version >= 6 ? 24 : version >= 4 ? 16 : 8;
        rules_.reset(static_cast<int>(::syscall(kCreateRuleset, &wanted, bytes, 0)));
        if (!rules_) {
            failure_ = system_error("cannot make rules", errno);
        }
    }

    // A path that does not exist is omitted.
    void allow(const std::string& path, std::uint64_t rights) {
        if (!failure_) {
            return;
        }
        const int descriptor = ::open(path.c_str(), O_PATH | O_CLOEXEC);
        struct stat facts {};
        if (descriptor < 0 || ::fstat(descriptor, &facts) != 0) {
            return;
        }
        if (!S_ISDIR(facts.st_mode)) {
            rights &= kUseDevice | kTruncate;  // the kernel refuses a folder's rights for a file
        }
        const PathRule rule{rights & handled_, descriptor};
        if (::syscall(kAddRule, rules_.get(), kPathRule, &rule, 0) != 0) {
            failure_ = system_error(fmt::format("cannot add a rule for {}", path), errno);
        }
        // A rule is about an inode. In /proc the kernel may drop one that nothing uses, and make another one for the
        // same name later, so these stay in use.
        if (!path.starts_with("/proc")) {
            ::close(descriptor);
        }
    }

    Result<UniqueFd> finish() {
        if (!failure_) {
            return failure_.error();
        }
        return std::move(rules_);
    }

  private:
    const std::uint64_t handled_;
    UniqueFd rules_;
    Status failure_;
};

void allow_gpus(Builder& rules, const Sandbox& sandbox) {
    for (const unsigned gpu : sandbox.gpus) {
        rules.allow(fmt::format("/dev/nvidia{}", gpu), kUseDevice);
    }
    DIR* const devices = sandbox.gpus.empty() ? ::opendir("/dev") : nullptr;
    if (devices == nullptr) {
        return;
    }
    while (const dirent* const entry = ::readdir(devices)) {
        const std::string_view name = entry->d_name;
        constexpr std::string_view kStart = "nvidia";
        if (name.starts_with(kStart) && name.size() > kStart.size() &&
            name.find_first_not_of("0123456789", kStart.size()) == std::string_view::npos) {
            rules.allow(fmt::format("/dev/{}", name), kUseDevice);
        }
    }
    ::closedir(devices);
}

std::string own_folder() {
    char path[PATH_MAX];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
    const std::string_view program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
    return std::string(program.substr(0, program.rfind('/')));
}

}  // namespace

int landlock_version() {
    const long version = ::syscall(kCreateRuleset, nullptr, 0, kAskVersion);
    return version > 0 ? static_cast<int>(version) : 0;
}

Result<FileRules> FileRules::make(const Sandbox& sandbox) {
    FileRules made;
    Builder rules(landlock_version());
    for (const char* path : kReadable) {
        rules.allow(path, kRead);
    }
    for (const char* path : kDevices) {
        rules.allow(path, kUseDevice | kRead);
    }
    allow_gpus(rules, sandbox);
    rules.allow(own_folder(), kRead);
    // The folder of this process, by its number: the name "self" is a link to it. Nothing in it lets the process do
    // more than it may do anyway. NVIDIA's driver names its threads there, with O_TRUNC.
    rules.allow(fmt::format("/proc/{}", ::getpid()), kRead | kWriteFile | kTruncate);
    for (const std::string& path : sandbox.readable) {
        rules.allow(path, kRead);
    }
    for (const std::string& path : sandbox.writable) {
        rules.allow(path, kWrite);
    }
    auto finished = rules.finish();
    if (!finished) {
        return finished.error();
    }
    made.rules_ = std::move(*finished);
    return made;
}

Status FileRules::apply() {
    if (!rules_) {
        return {};
    }
    if (::syscall(kRestrictSelf, rules_.get(), 0) != 0) {
        return system_error("cannot apply the rules", errno);
    }
    rules_.reset();
    return {};
}

}  // namespace gpupool::isolation
