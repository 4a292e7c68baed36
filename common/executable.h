// The location of the running executable, to find files that are installed beside it.
//
// Threads: any. Errors: none; if the system call fails, "." is returned.
#pragma once

#include <string>

namespace gpupool {

// Its folder, without a trailing slash.
std::string executable_directory();

}  // namespace gpupool
