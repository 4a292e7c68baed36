// Which device nodes of NVIDIA's driver belong to which GPUs.
//
// Ownership: values. Threads: any. Errors: none: if the nodes of a GPU are unknown, all are allowed.
#pragma once

#include <string>
#include <vector>

namespace gpupool::isolation {

// The numbers N of the nodes /dev/nvidiaN of the GPUs that a value of CUDA_VISIBLE_DEVICES names by their whole UUIDs.
// Empty, which means all nodes, if it names a GPU otherwise or one that the driver does not know, such as a part of a
// GPU. `folder` has a folder for each GPU.
std::vector<unsigned> gpus_of(const std::string& visible_devices,
                              const std::string& folder = "/proc/driver/nvidia/gpus");

}  // namespace gpupool::isolation
