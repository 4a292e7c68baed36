// The directory through which a daemon's workers find the next daemon at the same address.
//
//   ROOT/NAME/lock               held (flock) by the daemon that serves the address
//   ROOT/NAME/supervision.sock   workers that lost their daemon connect here
//
// NAME is the port, or a name derived from the path of a Unix socket.
//
// ROOT is a setting. Its default is $XDG_RUNTIME_DIR/gpupool, else /run/gpupool for root, else /tmp/gpupool-UID. It
// belongs to the daemon's user alone (mode 0700), since any process that reaches the socket can claim to be a worker.
// ROOT/NAME and the socket are open to all users: a worker, which may be another user, gets a descriptor of ROOT/NAME
// from the daemon, and no other process can get there.
//
// Ownership: the object holds the lock for its lifetime. Threads: one. Errors: messages name the path and the reason.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::supervision {

std::string default_runtime_root();

// Creates a directory with mode 0700, or restricts an existing one of this user to it.
Status make_private_directory(const std::string& path);

class RuntimeDirectory {
  public:
    // Creates and locks ROOT/NAME. Waits briefly for a daemon that is ending; `refused` if another one serves the
    // address.
    static Result<RuntimeDirectory> claim(const std::string& root, const std::string& name);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string supervision_path() const { return path_ + "/supervision.sock"; }

    // Listens at supervision_path(). Replaces the socket of an earlier daemon.
    [[nodiscard]] Result<UniqueFd> listen() const;

    // A descriptor of the directory, for workers.
    [[nodiscard]] Result<UniqueFd> open() const;

    // Removes the directory, after an orderly end with no worker left.
    void remove() noexcept;
    // After a start that failed. Keeps a directory that it found: workers of an earlier daemon may have it open.
    void abandon() noexcept;

  private:
    std::string path_;
    bool made_ = false;
    UniqueFd lock_;
};

// Connects to a supervision socket without blocking: in the directory behind the descriptor `folder`, or by `path` if
// that is -1. `unavailable` if no daemon listens there.
Result<UniqueFd> connect_supervision(const std::string& path, int folder = -1);

}  // namespace gpupool::supervision
