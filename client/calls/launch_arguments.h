// Packs a kernel's arguments, of a launch or a graph node, by the function's layout.
//
// Ownership: owns a copy of the arguments.
// Threads: one at a time.
// Errors: the driver's.
#pragma once

#include <cstring>
#include <vector>

#include "client/core/images/code.h"
#include "client/core/memory/mapped_memory.h"
#include "client/core/session/session.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

// All arguments as one block. Small blocks need no allocation.
class ArgumentBlock {
  public:
    CUresult pack(const FunctionInfo& info, void** kernelParams, void** extra) {
        if (extra != nullptr) {
            return kernelParams != nullptr ? CUDA_ERROR_INVALID_VALUE : pack_extra(extra);
        }
        if (info.layout.empty()) {
            return CUDA_SUCCESS;
        }
        if (kernelParams == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reserve(info.parameter_bytes);
        for (std::size_t i = 0; i < info.layout.size(); ++i) {
            const ParameterLayout& parameter = info.layout[i];
            std::memcpy(data_ + parameter.offset_bytes, kernelParams[i], parameter.size_bytes);
        }
        return CUDA_SUCCESS;
    }
    // Mirrors every value that could be an address of pinned host memory: the GPU must find the memory there.
    void give_to_gpu(Session& session) const {
        for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
            std::uint64_t value = 0;
            std::memcpy(&value, data_ + at, sizeof value);
            client::give_to_gpu(session, value);
        }
    }
    [[nodiscard]] const unsigned char* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    void reserve(std::size_t bytes) {
        bytes_ = bytes;
        if (bytes > sizeof small_) {
            large_.resize(bytes);
            data_ = large_.data();
        }
    }
    CUresult pack_extra(void** extra) {
        const void* buffer = nullptr;
        const std::size_t* size = nullptr;
        for (std::size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                buffer = extra[i + 1];
            } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                size = static_cast<const std::size_t*>(extra[i + 1]);
            } else {
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
        if (buffer == nullptr || size == nullptr || *size > codec::kMaxInlineBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reserve(*size);
        std::memcpy(data_, buffer, *size);
        return CUDA_SUCCESS;
    }

    alignas(16) unsigned char small_[512] = {};
    std::vector<unsigned char> large_;
    unsigned char* data_ = small_;
    std::size_t bytes_ = 0;
};

}  // namespace gpupool::client
