// `gpupool-worker --probe DRIVER`: prints as JSON which driver it found and which devices that has. With
// `--probe-contexts` also how much memory a context takes on each device.
#pragma once

#include <string>

namespace gpupool::worker {

// Returns the process's exit code.
int probe(const std::string& driver, bool contexts);

}  // namespace gpupool::worker
