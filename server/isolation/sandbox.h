// What a worker may do: the sandbox that it enters before it has a thread, a driver or a client.
//
// The daemon decides it and passes it on the worker's command line, after `--sandbox` and as the last arguments
// (ps shows them to every user of the host, so nothing in it names a tenant or a client):
//   user=UID        run as this user and group, without further groups
//   seccomp=MODE    enforce: system calls that are not on the list fail; log: they are made, and their names logged
//   files           Landlock: only the files below, no TCP, no signal to another process. Ignored by a kernel without
//   gpu=N           with `files`: the device nodes /dev/nvidiaN that it may open. None given: all of them
//   read=PATH       with `files`: a folder or file to read, besides those that every driver needs
//   write=PATH      with `files`: a folder in which it may write
// Every sandbox also has: no new privileges, no core dumps, no attaching debugger, bounds for files and descriptors.
//
// Ownership: values. Threads: enter() needs a process with one thread.
// Errors: enter() says which part failed. The process must end then: it may have entered another part.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::isolation {

enum class Seccomp { off, log, enforce };

struct Sandbox {
    std::optional<uid_t> user;
    Seccomp seccomp = Seccomp::off;
    bool files = false;
    std::vector<unsigned> gpus;
    std::vector<std::string> readable, writable;
};

inline constexpr const char* kSandboxOption = "--sandbox";

std::optional<Seccomp> parse_seccomp(std::string_view text);
std::string_view to_string(Seccomp mode);

// The arguments for the command line, with kSandboxOption first.
std::vector<std::string> arguments_of(const Sandbox& sandbox);
// Finds and reads them among a program's arguments. Without kSandboxOption: nullopt. `own` becomes the number of
// arguments before it.
Result<std::optional<Sandbox>> find_sandbox(std::span<const char* const> arguments, std::size_t& own);

// Enters the sandbox, for good.
Status enter(const Sandbox& sandbox);

// The version of the kernel's Landlock; 0 if it has none.
int landlock_version();

}  // namespace gpupool::isolation
