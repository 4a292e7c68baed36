// JIT options of the application. Numbers are sent to the worker. Pointers to log buffers stay here, and the client
// fills the buffers.
//
// Ownership: none; the pointers are the application's.
// Threads: any.
// Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct JitOptions {
    std::vector<int> names;
    std::vector<std::uint64_t> values;
    char *info = nullptr, *error = nullptr;
    std::size_t info_bytes = 0, error_bytes = 0;
    void **info_size = nullptr, **error_size = nullptr;

    [[nodiscard]] std::size_t log_bytes() const { return std::min<std::size_t>(info_bytes + error_bytes, 64u << 10); }
};

JitOptions take_options(unsigned count, const CUjit_option* names, void** values);

// Copies the worker's log, "info NUL error NUL", into the application's buffers and sets their sizes to what was
// written. `log` is not empty; a text without its NUL ends with it.
void give_log(const JitOptions& options, const std::vector<char>& log);

}  // namespace gpupool::client
