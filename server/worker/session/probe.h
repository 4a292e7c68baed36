// `gpupool-worker --probe DRIVER`: says on stdout, as JSON, which driver it found and which devices that has.
#pragma once

#include <string>

namespace gpupool::worker {

// The process's exit code.
int probe(const std::string& driver);

}  // namespace gpupool::worker
