// Small things about processes that the sub-commands share.
//
// Threads: one. Errors: Result.
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

// Both ends close-on-exec and numbered 10 or higher, so that handing one to a child under a small number overwrites
// none of the others.
Result<Pipe> make_pipe();

// A file without a name that holds `content`, for a child to read; as high as a pipe's ends.
Result<UniqueFd> make_file(const std::string& content);

struct SpawnRequest {
    std::string program;                 // a path, or with `search` a name looked up in PATH
    std::vector<std::string> arguments;  // with argv[0]
    std::vector<int> descriptors;        // become 3, 4, ... in the child
    bool search = false;
    bool own_group = false;  // the terminal's signals do not reach it
    sigset_t signal_mask{};
};

// Gives errno as the error, 0 with `process` set when it started.
int spawn(const SpawnRequest& request, pid_t& process);

// 32 random bytes as hexadecimal text.
Result<std::string> random_token();

}  // namespace gpupool::cli
