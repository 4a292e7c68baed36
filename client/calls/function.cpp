// What functions and kernels are asked: names, parameters, attributes.

#include <map>
#include <mutex>
#include <tuple>

#include "client/calls/code_registry.h"
#include "client/calls/handlers.h"

namespace gpupool::client::entry {
namespace {

CUresult name_of(const char** name, CUfunction function) {
    const auto info = function_info(function);
    if (name == nullptr || info == nullptr) {
        return name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *name = info->name.c_str();  // lives until the module is unloaded
    return CUDA_SUCCESS;
}

CUresult parameter_of(CUfunction function, std::size_t index, std::size_t* offset, std::size_t* size) {
    const auto info = function_info(function);
    if (info == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (offset == nullptr || index >= info->layout.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *offset = info->layout[index].offset_bytes;
    if (size != nullptr) {
        *size = info->layout[index].size_bytes;
    }
    return CUDA_SUCCESS;
}

// Attributes are asked for once; setting one forgets what is known.
struct AttributeCache {
    std::mutex mutex;
    std::map<std::tuple<CUfunction, int, CUdevice>, int> values;
};
AttributeCache& attribute_cache() {
    static auto& instance = *new AttributeCache;
    return instance;
}

template <class Ask>
CUresult cached_attribute(int* pi, CUfunction function, int attribute, CUdevice device, Ask ask) {
    if (pi == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (function_info(function) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    AttributeCache& cache = attribute_cache();
    const std::tuple key(function, attribute, device);
    {
        const std::lock_guard lock(cache.mutex);
        if (const auto it = cache.values.find(key); it != cache.values.end()) {
            *pi = it->second;
            return CUDA_SUCCESS;
        }
    }
    const CUresult result = ask();
    if (result == CUDA_SUCCESS) {
        const std::lock_guard lock(cache.mutex);
        cache.values[key] = *pi;
    }
    return result;
}

void forget_attributes() {
    AttributeCache& cache = attribute_cache();
    const std::lock_guard lock(cache.mutex);
    cache.values.clear();
}

}  // namespace

CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
    return name_of(name, reinterpret_cast<CUfunction>(hfunc));
}
CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
    return name_of(name, hfunc);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t paramIndex, std::size_t* paramOffset,
                              std::size_t* paramSize) {
    return parameter_of(reinterpret_cast<CUfunction>(kernel), paramIndex, paramOffset, paramSize);
}
CUresult cuFuncGetParamInfo(CUfunction func, std::size_t paramIndex, std::size_t* paramOffset, std::size_t* paramSize) {
    return parameter_of(func, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
    const auto info = function_info(hfunc);
    if (hmod == nullptr || info == nullptr) {
        return hmod == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    if (info->module == nullptr && info->library != nullptr) {
        return entry::cuLibraryGetModule(hmod, info->library);
    }
    *hmod = info->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
    if (state == nullptr || function_info(function) == nullptr) {
        return state == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *state = CU_FUNCTION_LOADING_STATE_LOADED;  // the worker loads a function when it is resolved
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
    return cached_attribute(pi, hfunc, attrib, -1,
                            [&] { return remote<calls::cuFuncGetAttribute>(pi, attrib, hfunc); });
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    return cached_attribute(pi, reinterpret_cast<CUfunction>(kernel), attrib, dev,
                            [&] { return remote<calls::cuKernelGetAttribute>(pi, attrib, kernel, dev); });
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    const CUresult result = remote<calls::cuFuncSetAttribute>(hfunc, attrib, value);
    forget_attributes();
    return result;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
    const CUresult result = remote<calls::cuKernelSetAttribute>(attrib, val, kernel, dev);
    forget_attributes();
    return result;
}

}  // namespace gpupool::client::entry
