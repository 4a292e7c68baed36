// A kernel's launch as the driver is asked for it, with the driver's handles.
//
// Ownership: none of the handles, nor the arguments. Threads: one at a time.
#pragma once

#include <span>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/internal.h"
#include "server/driver/api.h"

namespace gpupool::worker {

struct KernelLaunch {
    LaunchShape shape;  // its function is the client's
    CUfunction function = nullptr;
    CUstream stream = nullptr;
    std::vector<CUlaunchAttribute> attributes;
    std::span<unsigned char> arguments;  // in the command's frame

    // With the context current that the stream belongs to.
    CUresult issue(const driver::Api& api);
};

// A failed launch is reported later, by another call: the log says what it was.
void note_failure(const driver::Api& api, const KernelLaunch& launch, CUresult result);

CUlaunchConfig config_of(const LaunchShape& shape, std::vector<CUlaunchAttribute>& attributes, CUstream stream);

}  // namespace gpupool::worker
