#include "server/daemon/isolation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <sstream>

#include "common/environment.h"
#include "server/isolation/device_nodes.h"

namespace gpupool::daemon {

namespace {

constexpr const char* kDefaultUsers = "2000000000-2000009999";

// Folders in which the loader searches for libraries.
std::vector<std::string> library_folders() {
    std::vector<std::string> folders;
    std::istringstream list(environment::text("LD_LIBRARY_PATH").value_or(""));
    std::string folder;
    while (std::getline(list, folder, ':')) {
        if (folder.starts_with('/')) {
            folders.push_back(folder);
        }
    }
    return folders;
}

}  // namespace

WorkerUser& WorkerUser::operator=(WorkerUser&& other) noexcept {
    if (this != &other) {
        give_back();
        users_ = std::exchange(other.users_, nullptr);
        id_ = other.id_;
    }
    return *this;
}

void WorkerUser::give_back() {
    if (users_ != nullptr) {
        users_->give_back(id_);
    }
}

Result<Isolation> Isolation::decide(const Config& config) {
    Isolation decided;
    const std::string users = config.worker_users.value_or(kDefaultUsers);
    if (users == "off") {
        decided.why_no_users_ = "isolation.users is off";
    } else if (config.one_tenant && !config.worker_users) {
        decided.why_no_users_ = "it serves one program";
    } else {
        const auto range = isolation::parse_users(users);
        if (!range) {
            return range.error().within("isolation.users");
        }
        if (const auto why = isolation::users_unavailable(*range); !why) {
            decided.users_ = std::make_unique<isolation::Users>(*range);
        } else if (config.worker_users) {
            return Error{ErrorCode::unsupported, fmt::format("isolation.users cannot be obeyed: {}", *why)};
        } else {
            decided.why_no_users_ = *why;
        }
    }
    decided.common_.seccomp = config.seccomp;
    decided.common_.files = config.landlock && isolation::landlock_version() > 0;
    decided.common_.readable = library_folders();
    if (!config.image_directory.empty() && config.image_directory != "off") {
        decided.common_.writable.push_back(config.image_directory);
    }
    return decided;
}

Result<WorkerUser> Isolation::take_user() {
    if (users_ == nullptr) {
        return WorkerUser();
    }
    const auto user = users_->take();
    if (!user) {
        return Error{ErrorCode::limit_exceeded, "no user id of isolation.users is free: enlarge the range"};
    }
    return WorkerUser(*users_, *user);
}

WorkerUser Isolation::adopt_user(uid_t user) {
    if (users_ == nullptr || !users_->range().has(user)) {
        return {};
    }
    users_->adopt(user);
    return {*users_, user};
}

bool Isolation::is_workers(uid_t user) const {
    return user == ::geteuid() || (users_ != nullptr && users_->range().has(user));
}

isolation::Sandbox Isolation::sandbox(const WorkerUser& user, const std::string& driver,
                                      const std::optional<std::string>& visible_devices) const {
    isolation::Sandbox sandbox = common_;
    sandbox.user = user.id();
    if (driver.starts_with('/')) {
        sandbox.readable.push_back(driver.substr(0, std::max<std::size_t>(driver.rfind('/'), 1)));
    }
    sandbox.gpus = isolation::gpus_of(visible_devices.value_or(""));
    return sandbox;
}

std::string Isolation::describe() const {
    const std::string users =
        users_ == nullptr ? fmt::format("this server's user ({})", why_no_users_)
                          : fmt::format("a user of their own ({}-{})", users_->range().first, users_->range().last);
    const int version = isolation::landlock_version();
    const std::string files = common_.files ? fmt::format("version {}", version)
                              : version > 0 ? "off"
                                            : "not in this kernel";
    return fmt::format("workers run as {}; seccomp: {}; Landlock: {}", users, isolation::to_string(common_.seccomp),
                       files);
}

}  // namespace gpupool::daemon
