// Finds and loads the driver library.
//
// Ownership: a Library stays loaded until the process ends, since drivers do not survive being unloaded.
// Errors: messages name every candidate that was tried and why it was rejected.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "server/driver/api.h"

namespace gpupool::driver {

enum class Kind { nvidia, software };

struct Library {
    std::string path;
    Kind kind = Kind::nvidia;
    int version = 0;  // cuDriverGetVersion
    Api api;
};

// `setting` is "auto" (NVIDIA's driver if it finds a GPU, else the software GPU), "software", or a path.
Result<Library> load(const std::string& setting);

// Path of the software GPU: beside the executable, in ../lib, or in ../lib/gpupool. Empty if not found.
std::string software_gpu_path();

}  // namespace gpupool::driver
