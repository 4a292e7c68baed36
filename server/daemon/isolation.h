// Decides in which sandbox each worker runs, and gives it a user (server/isolation/).
//
// Decides once, at the start, which parts this machine can have: without root or its capabilities, workers run as the
// server's user; a kernel without Landlock rules no files. If the configuration asks for a user explicitly, that is an
// error instead.
//
// Ownership: a WorkerUser returns its id when it is destroyed, and must not outlive the Isolation.
// Threads: the loop's. Errors: messages name the setting.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "server/daemon/config.h"
#include "server/isolation/sandbox.h"
#include "server/isolation/users.h"

namespace gpupool::daemon {

// The user id of one worker.
class WorkerUser {
  public:
    WorkerUser() = default;
    WorkerUser(isolation::Users& users, uid_t id) : users_(&users), id_(id) {}
    WorkerUser(WorkerUser&& other) noexcept : users_(std::exchange(other.users_, nullptr)), id_(other.id_) {}
    WorkerUser& operator=(WorkerUser&& other) noexcept;
    ~WorkerUser() { give_back(); }

    [[nodiscard]] std::optional<uid_t> id() const { return users_ ? std::optional(id_) : std::nullopt; }

  private:
    void give_back();

    isolation::Users* users_ = nullptr;
    uid_t id_ = 0;
};

class Isolation {
  public:
    static Result<Isolation> decide(const Config& config);

    // An empty one if workers have no users of their own.
    Result<WorkerUser> take_user();
    // Of a worker of an earlier daemon.
    WorkerUser adopt_user(uid_t user);
    // May a worker run as this user?
    [[nodiscard]] bool is_workers(uid_t user) const;

    // `driver`: a path, or auto. `visible_devices`: the value of CUDA_VISIBLE_DEVICES, if the worker gets one.
    [[nodiscard]] isolation::Sandbox sandbox(const WorkerUser& user, const std::string& driver,
                                             const std::optional<std::string>& visible_devices) const;

    // For the log and for people: the parts in force, one line.
    [[nodiscard]] std::string describe() const;

  private:
    std::unique_ptr<isolation::Users> users_;  // null: none
    std::string why_no_users_;
    isolation::Sandbox common_;  // of all workers
};

}  // namespace gpupool::daemon
