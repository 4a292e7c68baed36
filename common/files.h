// Files that a setting names: read whole, or opened for appending. These functions never block, because an application
// may be waiting for the caller: a FIFO, a socket, a folder or a device is refused with an error that says so.
//
// Ownership: values. Threads: any. Errors: Result, whose message names the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool {

// The file's bytes; nullopt where there is no such file. /dev/null is an empty file.
Result<std::optional<std::string>> read_file(const std::string& path, std::size_t limit_bytes);

// Up to `bytes` bytes from `offset` on; fewer at the end of the file or if it cannot be read.
std::string read_part(const std::string& path, std::uint64_t offset, std::size_t bytes);

// Creates the file with `mode` if it does not exist. Terminals and /dev/null are accepted as well.
Result<UniqueFd> open_to_append(const std::string& path, unsigned mode);

}  // namespace gpupool
