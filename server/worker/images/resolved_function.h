// A function that a helper thread finds and loads, and the properties of it that go into the reply.
//
// Ownership: values. Threads: one at a time. Errors: the driver's, in `result`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "protocol/calls/internal.h"
#include "protocol/codec/command.h"
#include "protocol/codec/cursor.h"
#include "server/driver/api.h"

namespace gpupool::worker {

inline CUresult read_attributes(const driver::Api& api, CUfunction function, bool is_kernel, CUdevice device,
                                std::vector<int>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto attribute = static_cast<CUfunction_attribute>(i);
        const CUresult result = is_kernel ? driver::call(api.cuKernelGetAttribute, &values[i], attribute,
                                                         reinterpret_cast<CUkernel>(function), device)
                                          : driver::call(api.cuFuncGetAttribute, &values[i], attribute, function);
        if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) {
            values[i] = kUnknownAttribute;
        } else if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

struct ResolvedFunction {
    explicit ResolvedFunction(std::size_t attribute_count)
        : attributes(std::min<std::size_t>(attribute_count, CU_FUNC_ATTRIBUTE_MAX), kUnknownAttribute) {}

    CUresult result = CUDA_ERROR_NOT_READY;
    CUfunction handle = nullptr;
    std::vector<ParameterLayout> layout;
    bool layout_known = false;
    std::vector<int> attributes;  // all unknown if the driver refused one: the client asks again and gets the error

    // Requires that `handle` has been found.
    void load(const driver::Api& api) {
        driver::call(api.cuFuncLoad, handle);
        read_layout(api);
        if (read_attributes(api, handle, false, 0, attributes) != CUDA_SUCCESS) {
            attributes.assign(attributes.size(), kUnknownAttribute);
        }
    }
    // Finds and loads the function of `kernel` in the current context.
    void load_of(const driver::Api& api, CUkernel kernel) {
        result = driver::call(api.cuKernelGetFunction, &handle, kernel);
        if (result == CUDA_SUCCESS) {
            load(api);
        }
    }

    [[nodiscard]] std::size_t layout_bytes(std::size_t capacity) const {
        return 8 + std::min(capacity, layout.size()) * sizeof(ParameterLayout) + 8;
    }
    void write_layout(codec::Writer& out, std::size_t capacity) const {
        const std::size_t sent = std::min(capacity, layout.size());
        out.value(std::uint64_t{sent});
        out.bytes(layout.data(), sent * sizeof(ParameterLayout));
        out.value(layout_known ? static_cast<unsigned>(layout.size()) : kUnknownLayout);
    }
    [[nodiscard]] std::size_t attributes_bytes() const { return 8 + codec::aligned(attributes.size() * sizeof(int)); }
    void write_attributes(codec::Writer& out) const {
        out.value(std::uint64_t{attributes.size()});
        out.bytes(attributes.data(), attributes.size() * sizeof(int));
    }

  private:
    void read_layout(const driver::Api& api) {
        constexpr std::size_t kMaxParameters = 4096;
        for (std::size_t index = 0; index < kMaxParameters; ++index) {
            std::size_t offset = 0, size = 0;
            const CUresult found = driver::call(api.cuFuncGetParamInfo, handle, index, &offset, &size);
            if (found != CUDA_SUCCESS) {
                layout_known = found == CUDA_ERROR_INVALID_VALUE;  // the end of the parameters
                return;
            }
            layout.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
        }
    }
};

}  // namespace gpupool::worker
