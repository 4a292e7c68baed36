// Files that a setting names: read whole, or opened to be written at the end. Somebody else's program may be waiting
// for us, so nothing here waits for anybody: a FIFO, a socket, a folder or a device is refused by name.
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

// Up to `bytes` of it from `offset` on; less where there is less, or it cannot be read.
std::string read_part(const std::string& path, std::uint64_t offset, std::size_t bytes);

// Creates the file with `mode` where there is none. Terminals and /dev/null are taken as well: they take all there is.
Result<UniqueFd> open_to_append(const std::string& path, unsigned mode);

}  // namespace gpupool
