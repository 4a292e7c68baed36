// The files of `gpupool trace`, before the program writes to them and after.
//
// Threads: one. Errors: Result, whose message names the file.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::cli {

// What a program's processes append to. `begin` empties it, which is done last: whatever else may keep the program from
// being started leaves the files of an earlier trace as they are.
class TraceFiles {
  public:
    // A file that holds something else is left alone and refused. `timeline` and `summary` become absolute, for a
    // program that changes its folder. A summary of "-" is standard error; one that is no file (a terminal, /dev/null)
    // is left as it is.
    static Result<TraceFiles> open(std::string& timeline, std::string& summary);

    Status begin() const;

  private:
    UniqueFd timeline_;
    UniqueFd summary_;  // none: there is nothing to empty
};

// Closes the array that the program's processes have left open, and says on standard error where it is.
void complete_trace(const std::string& path);

}  // namespace gpupool::cli
