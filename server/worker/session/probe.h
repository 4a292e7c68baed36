// `gpupool-worker --probe DRIVER`: prints as JSON which driver it found and which devices that has.
#pragma once

#include <string>

namespace gpupool::worker {

// Returns the process's exit code.
int probe(const std::string& driver);

}  // namespace gpupool::worker
