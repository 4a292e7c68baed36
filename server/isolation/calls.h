// The system calls that a worker may make, by seccomp: calls.cpp has the list.
//
// A call that is not on the list fails: with EPERM if it would reach beyond the process, else with ENOSYS, as on a
// kernel without it, so that libraries use another one. In the mode `log` every call is made, and the log names each
// one that is not on the list, once.
//
// Threads: filters the calling thread and all later ones; `log` begins a thread, which is not filtered.
// Errors: with their cause. Units: none.
#pragma once

#include "common/result.h"
#include "server/isolation/sandbox.h"

namespace gpupool::isolation {

// Needs no_new_privs.
Status filter_calls(Seccomp mode);

}  // namespace gpupool::isolation
