// Finds and loads the driver library.
//
// Ownership: a Library stays loaded for the life of the process (drivers do not survive being unloaded).
// Errors: messages name every candidate that was tried and why it was not taken.
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

// `setting` is "auto" (NVIDIA's where there is one with a GPU, else the software GPU), "software", or a path.
Result<Library> load(const std::string& setting);

// Where the software GPU lies: beside the executable, in ../lib, or in ../lib/gpupool; empty when nowhere.
std::string software_gpu_path();

}  // namespace gpupool::driver
