// Where the running executable lies, for what is installed beside it.
//
// Threads: any. Errors: none; where the system does not say, the current folder stands for it.
#pragma once

#include <string>

namespace gpupool {

// Its folder, without a slash at the end.
std::string executable_directory();

}  // namespace gpupool
