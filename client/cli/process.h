// Helpers for processes that the sub-commands share.
//
// Ownership: descriptors are owned by what is returned.
// Threads: one.
// Errors: Result, or errno where noted.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::cli {

struct Pipe {
    UniqueFd read_end;
    UniqueFd write_end;
};

// Both ends are close-on-exec and numbered 10 or higher, so that passing one to a child under a small number does not
// overwrite another.
Result<Pipe> make_pipe();

// An unnamed file with `content`, for a child to read; numbered like a pipe's ends.
Result<UniqueFd> make_file(const std::string& content);

struct SpawnRequest {
    std::string program;                 // a path, or, with `search`, a name to find in PATH
    std::vector<std::string> arguments;  // including argv[0]
    std::vector<int> descriptors;        // become descriptors 3, 4, ... of the child
    bool search = false;
    bool own_group = false;  // signals from the terminal do not reach it
    sigset_t signal_mask{};
};

// Returns 0 and sets `process`, or returns errno.
int spawn(const SpawnRequest& request, pid_t& process);

// 32 random bytes as hexadecimal text.
Result<std::string> random_token();

}  // namespace gpupool::cli
