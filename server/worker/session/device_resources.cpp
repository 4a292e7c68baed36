#include "server/worker/session/device_resources.h"

#include <cstring>

#include "protocol/codec/struct_traits.h"

namespace gpupool::worker {
namespace {

// What the client gets: the documented fields, and the number of the resource.
CUdevResource described(const CUdevResource& resource, std::uint64_t number) {
    CUdevResource out{};
    out.type = resource.type;
    out.sm = resource.sm;
    std::memcpy(out._internal_padding, &number, sizeof number);
    return out;
}

}  // namespace

CUresult DeviceResources::give(CUdevResource& resource) {
    if (codec::number_of(resource.type) == CU_DEV_RESOURCE_TYPE_INVALID) {
        resource = {};  // nothing remains of a split
        return CUDA_SUCCESS;
    }
    const std::string content(reinterpret_cast<const char*>(&resource), sizeof resource);
    auto known = indexes_.find(content);
    if (known == indexes_.end()) {
        if (given_.size() >= kMaxResources) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        known = indexes_.emplace(content, given_.size()).first;
        given_.push_back(resource);
    }
    resource = described(resource, known->second + 1);
    return CUDA_SUCCESS;
}

CUresult DeviceResources::take(CUdevResource& resource) const {
    if (codec::number_of(resource.type) != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    std::uint64_t number = 0;
    std::memcpy(&number, resource._internal_padding, sizeof number);
    if (number == 0 || number > given_.size()) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    const CUdevResource& given = given_[number - 1];
    if (given.sm.smCount != resource.sm.smCount) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    resource = given;
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
