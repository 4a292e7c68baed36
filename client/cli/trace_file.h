// Prepares the files of `gpupool trace` before the program writes them, and completes them afterwards.
//
// Ownership: owns the descriptors.
// Threads: one.
// Errors: Result; the message names the file.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::cli {

// The files that the program's processes append to. begin() empties them and is called last, so that the files of an
// earlier trace survive if the program cannot be started.
class TraceFiles {
  public:
    // Refuses a file with other content. `timeline` and `summary` become absolute paths, because the program may change
    // its working directory. A summary of "-" is standard error; one that is not a regular file (a terminal, /dev/null)
    // is used as it is.
    static Result<TraceFiles> open(std::string& timeline, std::string& summary);

    Status begin() const;

  private:
    UniqueFd timeline_;
    UniqueFd summary_;  // invalid: nothing to empty
};

// Closes the array that the program's processes left open, and reports on standard error where the timeline is.
void complete_trace(const std::string& path);

}  // namespace gpupool::cli
