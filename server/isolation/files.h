// The files that a worker may open, by Landlock: a driver's own, its GPUs' device nodes, and the folders of a Sandbox.
// Also no TCP, no signal to a process outside, and no abstract Unix socket of one, as far as the kernel's Landlock can.
//
// Files that the process has open, or receives, stay open. A kernel may know fewer rights; then only those are ruled.
// Landlock does not rule who may see that a file exists, nor connections to Unix sockets with a path.
//
// Ownership: FileRules owns the set of rules; apply() keeps some descriptors open for the life of the process.
// Threads: apply() rules the calling thread and its later threads.
#pragma once

#include "common/result.h"
#include "common/unique_fd.h"
#include "server/isolation/sandbox.h"

namespace gpupool::isolation {

class FileRules {
  public:
    FileRules() = default;  // allows everything

    static Result<FileRules> make(const Sandbox& sandbox);
    [[nodiscard]] bool any() const { return static_cast<bool>(rules_); }
    // Needs no_new_privs.
    Status apply();

  private:
    UniqueFd rules_;
};

}  // namespace gpupool::isolation
