#include "server/isolation/users.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <random>

namespace gpupool::isolation {

namespace {

constexpr uid_t kMaxUser = 0xfffffffd;  // the two above it stand for "none"

bool read_user(std::string_view text, uid_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && out > 0 && out <= kMaxUser;
}

bool has_processes(uid_t user) {
    errno = 0;
    return ::getpriority(PRIO_USER, user) != -1 || errno != ESRCH;
}

// Does a map of ids (user_namespaces(7)) have all of the range? Each line: the first id inside, outside, how many.
bool is_mapped(const char* map, const UserRange& range) {
    std::ifstream lines(map);
    std::uint64_t inside = 0, outside = 0, count = 0;
    while (lines >> inside >> outside >> count) {
        if (range.first >= inside && range.last < inside + count) {
            return true;
        }
    }
    return false;
}

bool has_capabilities() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
    constexpr unsigned kNeeded = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;
    return ::syscall(SYS_capget, &header, data) == 0 && (data[0].effective & kNeeded) == kNeeded;
}

}  // namespace

Result<UserRange> parse_users(const std::string& text) {
    const std::size_t dash = text.find('-');
    UserRange range;
    if (dash == std::string::npos || !read_user(std::string_view(text).substr(0, dash), range.first) ||
        !read_user(std::string_view(text).substr(dash + 1), range.last) || range.first > range.last) {
        return Error{ErrorCode::invalid_input,
                     "must be \"off\" or a range of user ids without 0, like \"2000000000-2000009999\""};
    }
    return range;
}

std::optional<std::string> users_unavailable(const UserRange& range) {
    if (::geteuid() != 0) {
        return "the server was not started as root";
    }
    if (!has_capabilities()) {
        return "the server lacks the capabilities SETUID, SETGID and KILL";
    }
    if (!is_mapped("/proc/self/uid_map", range) || !is_mapped("/proc/self/gid_map", range)) {
        return fmt::format("the server's user name space does not have the ids {}-{}", range.first, range.last);
    }
    return std::nullopt;
}

std::optional<uid_t> Users::take() {
    const std::uint64_t count = std::uint64_t{range_.last} - range_.first + 1;
    if (next_ == 0) {
        // Servers that share a range begin at different places, so that they rarely try the same id at the same moment.
        next_ = range_.first + static_cast<uid_t>(std::random_device()() % count);
    }
    for (std::uint64_t tried = 0; tried < count; ++tried) {
        const uid_t user = next_;
        next_ = next_ == range_.last ? range_.first : next_ + 1;
        if (!given_.contains(user) && !has_processes(user)) {
            given_.insert(user);
            return user;
        }
    }
    return std::nullopt;
}

void Users::adopt(uid_t user) {
    if (range_.has(user)) {
        given_.insert(user);
    }
}

}  // namespace gpupool::isolation
