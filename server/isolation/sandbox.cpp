#include "server/isolation/sandbox.h"

#include <fmt/format.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "server/isolation/calls.h"
#include "server/isolation/files.h"

namespace gpupool::isolation {

namespace {

constexpr rlim_t kMaxThreads = 8192;               // of the worker's user
constexpr rlim_t kMaxDescriptors = 65536;          // of the process
constexpr rlim_t kMaxFileBytes = rlim_t{1} << 42;  // 4 TiB: also of memory that processes share

template <class Number>
bool read_number(std::string_view text, Number& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
}

bool read_item(std::string_view item, Sandbox& sandbox) {
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    if (key == "user") {
        sandbox.user = 0;
        return read_number(value, *sandbox.user) && *sandbox.user != 0;
    }
    if (key == "seccomp") {
        const auto mode = parse_seccomp(value);
        sandbox.seccomp = mode.value_or(Seccomp::enforce);
        return mode.has_value();
    }
    if (key == "files") {
        return sandbox.files = value.empty();
    }
    if (key == "gpu") {
        return read_number(value, sandbox.gpus.emplace_back());
    }
    if (key == "read" || key == "write") {
        (key == "read" ? sandbox.readable : sandbox.writable).emplace_back(value);
        return value.starts_with('/');
    }
    return false;
}

Status set_limit(__rlimit_resource resource, const char* name, rlim_t most) {
    rlimit now{};
    if (::getrlimit(resource, &now) != 0) {
        return system_error(fmt::format("getrlimit {}", name), errno);
    }
    const rlimit wanted{std::min(now.rlim_cur, most), std::min(now.rlim_max, most)};
    return ::setrlimit(resource, &wanted) == 0 ? Status() : system_error(fmt::format("setrlimit {}", name), errno);
}

Status set_limits(const Sandbox& sandbox) {
    GPUPOOL_TRY(set_limit(RLIMIT_CORE, "core", 0));
    GPUPOOL_TRY(set_limit(RLIMIT_FSIZE, "fsize", kMaxFileBytes));
    GPUPOOL_TRY(set_limit(RLIMIT_NOFILE, "nofile", kMaxDescriptors));
    GPUPOOL_TRY(set_limit(RLIMIT_MSGQUEUE, "msgqueue", 0));
    GPUPOOL_TRY(set_limit(RLIMIT_RTPRIO, "rtprio", 0));
    if (!sandbox.user) {
        return {};
    }
    GPUPOOL_TRY(set_limit(RLIMIT_NPROC, "nproc", kMaxThreads));
    // Root may lock any amount of memory, and drivers lock much of it. The worker will not be root. A container may
    // refuse to raise the limit; then its own holds.
    const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
    (void)::setrlimit(RLIMIT_MEMLOCK, &any);
    return {};
}

Status become(uid_t user) {
    const gid_t group = user;
    if (::setgroups(0, nullptr) != 0 || ::setresgid(group, group, group) != 0 || ::setresuid(user, user, user) != 0) {
        return system_error(fmt::format("cannot become user {}", user), errno);
    }
    if (::setresuid(static_cast<uid_t>(-1), 0, static_cast<uid_t>(-1)) == 0) {
        return Error{ErrorCode::internal, "it can become root again"};
    }
    return {};
}

}  // namespace

std::optional<Seccomp> parse_seccomp(std::string_view text) {
    for (const Seccomp mode : {Seccomp::off, Seccomp::log, Seccomp::enforce}) {
        if (text == to_string(mode)) {
            return mode;
        }
    }
    return std::nullopt;
}

std::string_view to_string(Seccomp mode) {
    switch (mode) {
        case Seccomp::off: return "off";
        case Seccomp::log: return "log";
        case Seccomp::enforce: break;
    }
    return "enforce";
}

std::vector<std::string> arguments_of(const Sandbox& sandbox) {
    std::vector<std::string> arguments{kSandboxOption};
    if (sandbox.user) {
        arguments.push_back(fmt::format("user={}", *sandbox.user));
    }
    arguments.push_back(fmt::format("seccomp={}", to_string(sandbox.seccomp)));
    if (sandbox.files) {
        arguments.emplace_back("files");
    }
    for (const unsigned gpu : sandbox.gpus) {
        arguments.push_back(fmt::format("gpu={}", gpu));
    }
    for (const std::string& path : sandbox.readable) {
        arguments.push_back("read=" + path);
    }
    for (const std::string& path : sandbox.writable) {
        arguments.push_back("write=" + path);
    }
    return arguments;
}

Result<std::optional<Sandbox>> find_sandbox(std::span<const char* const> arguments, std::size_t& own) {
    const auto option = std::find_if(arguments.begin(), arguments.end(),
                                     [](const char* one) { return std::strcmp(one, kSandboxOption) == 0; });
    own = static_cast<std::size_t>(option - arguments.begin());
    if (option == arguments.end()) {
        return std::optional<Sandbox>();
    }
    Sandbox sandbox;
    for (const char* item : arguments.subspan(own + 1)) {
        if (!read_item(item, sandbox)) {
            return Error{ErrorCode::invalid_input, fmt::format("{} has an invalid item: {}", kSandboxOption, item)};
        }
    }
    return std::optional(std::move(sandbox));
}

Status enter(const Sandbox& sandbox) {
    GPUPOOL_TRY(set_limits(sandbox));
    Result<FileRules> rules = FileRules();
    if (sandbox.files && landlock_version() > 0) {
        rules = FileRules::make(sandbox);  // as the present user: root can name every file
        if (!rules) {
            return rules.error().within("Landlock");
        }
    }
    if (sandbox.user) {
        GPUPOOL_TRY(become(*sandbox.user));
    }
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return system_error("no_new_privs", errno);
    }
    // No other process of the same user may attach to it or read its memory. Landlock refuses that to other workers,
    // so then the user of a server without root may still attach a debugger.
    const bool shared_user = !sandbox.user && rules->any();
    if (!shared_user && ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        return system_error("dumpable", errno);
    }
    GPUPOOL_TRY(rules->apply());
    const Status filtered = filter_calls(sandbox.seccomp);
    return filtered ? Status() : filtered.error().within("seccomp");
}

}  // namespace gpupool::isolation
