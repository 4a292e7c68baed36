// A kernel launch in the form that the driver takes, with the driver's handles.
//
// Ownership: owns neither handles nor arguments.
// Threads: one at a time.
#pragma once

#include <span>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/internal.h"
#include "protocol/codec/handles.h"
#include "server/driver/api.h"

namespace gpupool::worker {

struct KernelLaunch {
    LaunchShape shape;  // with the client's function handle
    CUfunction function = nullptr;
    CUstream stream = nullptr;
    std::vector<CUlaunchAttribute> attributes;
    std::span<unsigned char> arguments;  // in the command's frame
    bool captured = false;               // the stream captures

    // Is `function` a CUkernel?
    [[nodiscard]] bool is_kernel() const {
        return codec::kind_of(codec::to_wire(shape.function)) == codec::HandleKind::kernel;
    }
    // Issues the launch. The context of the command, or of the stream, must be current.
    CUresult issue(const driver::WorkPermit& permit, const driver::Api& api);
};

// Finds each argument of `function` (a CUkernel if `is_kernel`) in packed arguments. False if the driver does not say
// where they are.
bool find_arguments(const driver::Api& api, CUfunction function, bool is_kernel, std::span<unsigned char> packed,
                    std::vector<void*>& addresses);

// Logs the launch: its error is reported later, by another call that does not name it.
void note_failure(const driver::Api& api, const KernelLaunch& launch, CUresult result);

CUlaunchConfig config_of(const LaunchShape& shape, std::vector<CUlaunchAttribute>& attributes, CUstream stream);

}  // namespace gpupool::worker
