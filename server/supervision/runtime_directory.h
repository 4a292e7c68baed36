// Where a daemon keeps what the next daemon at the same address needs: its lock and the socket at which workers find
// it.
//
//   ROOT/NAME/lock               held (flock) by the daemon that serves the address
//   ROOT/NAME/supervision.sock   workers that lost their daemon come here
//
// NAME is the port, or stands for the path of a Unix socket.
//
// ROOT is a setting; by default $XDG_RUNTIME_DIR/gpupool, else /run/gpupool for root, else /tmp/gpupool-UID. Both
// levels are ours alone (mode 0700): whoever can reach the socket can claim to be a worker.
//
// Ownership: the lock is held as long as the object lives. Threads: one. Errors: say which path and why.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::supervision {

std::string default_runtime_root();

// A directory that only we may enter: made, or one of ours closed to others.
Status make_private_directory(const std::string& path);

class RuntimeDirectory {
  public:
    // Makes and locks ROOT/NAME; waits briefly for a daemon that is just ending. `refused` when another one serves it.
    static Result<RuntimeDirectory> claim(const std::string& root, const std::string& name);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string supervision_path() const { return path_ + "/supervision.sock"; }

    // Listens at supervision_path(), in place of whatever an earlier daemon left there.
    [[nodiscard]] Result<UniqueFd> listen() const;

    // After an orderly end with no worker left: nothing is left behind either.
    void remove() noexcept;

  private:
    std::string path_;
    UniqueFd lock_;
};

// Connects to a supervision socket without waiting. `unavailable` when nobody listens there.
Result<UniqueFd> connect_supervision(const std::string& path);

}  // namespace gpupool::supervision
