// Queries of functions and kernels: names, parameters, attributes.

#include <memory>
#include <optional>

#include "client/calls/handlers.h"
#include "client/core/images/code_registry.h"

namespace gpupool::client::entry {
namespace {

CUfunction as_function(CUkernel kernel) {
    return reinterpret_cast<CUfunction>(kernel);
}

// Only launches, and questions about them, accept a kernel in place of a function.
bool is_kernel(CUfunction handle) {
    return codec::kind_of(codec::to_wire(handle)) == codec::HandleKind::kernel;
}

CUresult name_of(const char** name, CUfunction function, bool wants_kernel) {
    if (name == nullptr || function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto info = function_info(function);
    if (info == nullptr || is_kernel(function) != wants_kernel) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *name = info->name.c_str();  // valid until the module is unloaded
    return CUDA_SUCCESS;
}

CUresult parameter_of(CUfunction function, bool wants_kernel, std::size_t index, std::size_t* offset,
                      std::size_t* size) {
    if (function == nullptr || is_kernel(function) != wants_kernel) {
        return function == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<const FunctionInfo> info;
    if (const CUresult result = function_info_with_layout(function, info); result != CUDA_SUCCESS) {
        return result;
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

bool is_attribute(CUfunction_attribute attribute) {
    return attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX;
}

CUdevice device_of(const FunctionInfo& info) {
    if (info.device >= 0) {
        return info.device;
    }
    const ContextState* const context = this_thread().current();
    return context == nullptr ? 0 : context->device;
}

// Finds and loads the attributes of a function or kernel on a device.
CUresult find_attributes(CUfunction handle, std::optional<CUdevice> device, FunctionAttributes::OnDevice*& found,
                         std::shared_ptr<const FunctionInfo>& info) {
    info = function_info(handle);
    if (info == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (device && (*device < 0 || static_cast<std::size_t>(*device) >= this_session().devices.devices.size())) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const CUdevice on = device.value_or(device_of(*info));
    found = info->attributes->on(on);
    return found == nullptr ? CUDA_ERROR_INVALID_DEVICE : found->load(handle, on);
}

template <class Ask>
CUresult get_attribute(int* value, CUfunction_attribute attribute, CUfunction handle, std::optional<CUdevice> device,
                       Ask ask) {
    if (value == nullptr || !is_attribute(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    FunctionAttributes::OnDevice* attributes = nullptr;
    std::shared_ptr<const FunctionInfo> info;
    const CUresult result = find_attributes(handle, device, attributes, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const int known = attributes->get(attribute);
    if (known == kUnknownAttribute) {
        return ask();
    }
    *value = known;
    return CUDA_SUCCESS;
}

// Checks attributes whose limits the client knows, so that setting them needs no round trip: libraries set them before
// every launch. `known`: it is such an attribute.
CUresult check_settable(const FunctionAttributes::OnDevice& attributes, CUfunction_attribute attribute, int value,
                        CUdevice device, bool& known) {
    known = true;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        int most = 0;
        this_session().devices.devices[static_cast<std::size_t>(device)].attributes.get(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &most);
        const int own = attributes.get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        return value < 0 || value > most - own ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    known = false;
    return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction handle, std::optional<CUdevice> device, CUfunction_attribute attribute, int value) {
    FunctionAttributes::OnDevice* attributes = nullptr;
    std::shared_ptr<const FunctionInfo> info;
    CUresult result = find_attributes(handle, device, attributes, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const CUdevice on = device.value_or(device_of(*info));
    bool known = false;
    result = check_settable(*attributes, attribute, value, on, known);
    if (result != CUDA_SUCCESS || (known && attributes->get(attribute) == value)) {
        return result;
    }
    result = remote_or_ask<calls::gpFunctionSetAttribute>(known, handle, on, static_cast<int>(attribute), value);
    if (!known) {
        attributes->forget();
    } else if (result == CUDA_SUCCESS) {
        attributes->set(attribute, value);
    }
    return result;
}

}  // namespace

CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
    return name_of(name, as_function(hfunc), true);
}
CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
    return name_of(name, hfunc, false);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t paramIndex, std::size_t* paramOffset,
                              std::size_t* paramSize) {
    ContextState* context = nullptr;
    const CUresult result = usable_context(context);
    return result != CUDA_SUCCESS ? result
                                  : parameter_of(as_function(kernel), true, paramIndex, paramOffset, paramSize);
}
CUresult cuFuncGetParamInfo(CUfunction func, std::size_t paramIndex, std::size_t* paramOffset, std::size_t* paramSize) {
    return parameter_of(func, false, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
    if (hmod == nullptr || hfunc == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto info = function_info(hfunc);
    if (info == nullptr || is_kernel(hfunc)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (info->library == nullptr) {
        *hmod = info->module;
        return CUDA_SUCCESS;
    }
    if (const CUmodule known = find_library_module(info->library, info->context); known != nullptr) {
        *hmod = known;
        return CUDA_SUCCESS;
    }
    const CurrentContext current(info->context == nullptr ? nullptr : this_session().contexts.find(info->context));
    return entry::cuLibraryGetModule(hmod, info->library);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
    if (state == nullptr || is_kernel(function) || function_info(function) == nullptr) {
        return state == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *state = CU_FUNCTION_LOADING_STATE_LOADED;  // the worker loads a function when the client looks it up
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    return is_kernel(function) ? CUDA_ERROR_INVALID_HANDLE : remote<calls::cuFuncLoad>(function);
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
    if (pi != nullptr && is_kernel(hfunc)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return get_attribute(pi, attrib, hfunc, {}, [&] { return remote<calls::cuFuncGetAttribute>(pi, attrib, hfunc); });
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    return get_attribute(pi, attrib, as_function(kernel), dev,
                         [&] { return remote<calls::cuKernelGetAttribute>(pi, attrib, kernel, dev); });
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    return is_kernel(hfunc) ? CUDA_ERROR_INVALID_HANDLE : set_attribute(hfunc, {}, attrib, value);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
    return set_attribute(as_function(kernel), dev, attrib, val);
}

}  // namespace gpupool::client::entry
