// The resources of devices (CUdevResource) that the driver gave to the session.
//
// A program passes them back, and the driver trusts the addresses that it put into them. So the client gets a number
// instead, beside the fields that cuda.h documents, and only resources that were given are accepted.
//
// Ownership: keeps a copy of each, until the session ends.
// Threads: the dispatcher's alone.
// Errors: the driver's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

class DeviceResources {
  public:
    static constexpr std::size_t kMaxResources = 4096;     // different ones
    static constexpr std::size_t kMaxDescriptors = 65536;  // the driver never frees one
    std::size_t descriptors = 0;

    // Replaces what the driver returned by what the client gets.
    CUresult give(CUdevResource& resource);
    // Replaces what the client sent by what the driver returned.
    CUresult take(CUdevResource& resource) const;

  private:
    std::vector<CUdevResource> given_;
    std::map<std::string, std::size_t> indexes_;  // by content
};

}  // namespace gpupool::worker
