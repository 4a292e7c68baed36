// The file of `gpupool trace`, before the program writes to it and after.
//
// Threads: one. Errors: Result, whose message names the file.
#pragma once

#include <string>

#include "common/result.h"

namespace gpupool::cli {

// Makes it an empty timeline; a file that holds something else is left alone and refused. `path` becomes absolute, for
// a program that changes its folder.
Status begin_trace(std::string& path);

// The same for the summary, which a program's processes append to; what is no file (a terminal, /dev/null) is left as
// it is.
Status begin_summary(std::string& path);

// Closes the array that the program's processes have left open, and says on standard error where it is.
void complete_trace(const std::string& path);

}  // namespace gpupool::cli
