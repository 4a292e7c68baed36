// Modules and their functions.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "server/softgpu/api/functions.h"
#include "server/softgpu/api/image.h"
#include "server/softgpu/api/texture_reference.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

CUresult Module::take(std::shared_ptr<CompiledModule> compiled) {
    if (!context->device->take(compiled->memory_bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    counted_bytes = compiled->memory_bytes;
    code = std::move(compiled);
    references = make_references(*code);
    return CUDA_SUCCESS;
}

Module::~Module() {
    forget_references(references);
    context->device->give(counted_bytes);
}

std::shared_ptr<Function> Module::function(const CompiledFunction& from) {
    const Lock lock(mutex);
    auto& found = functions[&from];
    if (found == nullptr) {
        found = std::make_shared<Function>();
        found->module = this;
        found->code = &from;
        state().functions.add(found);
    }
    return found;
}

std::shared_ptr<Function> Module::function(std::string_view name) {
    for (const auto& candidate : code->functions) {
        if (candidate.entry && candidate.defined && candidate.name == name) {
            return function(candidate);
        }
    }
    return nullptr;
}

CUresult find_function(CUfunction handle, std::shared_ptr<Function>& result) {
    result = state().functions.find(handle);
    if (result != nullptr) {
        return CUDA_SUCCESS;
    }
    const auto kernel = state().kernels.find(handle);
    if (kernel == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    ContextPtr context;
    if (const CUresult error = current_context(context); error != CUDA_SUCCESS) {
        return error;
    }
    std::shared_ptr<Module> module;
    if (const CUresult error = kernel->library->module(context, module); error != CUDA_SUCCESS) {
        return error;
    }
    result = module->function(kernel->code->name);
    return result == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult function_attribute(const CompiledFunction& code, const std::map<int, int>& set, CUfunction_attribute attribute,
                            int& value) {
    if (const auto found = set.find(attribute); found != set.end()) {
        value = found->second;
        return CUDA_SUCCESS;
    }
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: value = static_cast<int>(code.max_threads); break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: value = static_cast<int>(code.shared_bytes); break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: value = static_cast<int>(code.constant_bytes); break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: value = static_cast<int>(code.local_bytes); break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: value = static_cast<int>(code.register_count); break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: value = static_cast<int>(code.virtual_architecture); break;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: value = 90; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            value = std::max(0, kMaxStaticSharedBytes - static_cast<int>(code.shared_bytes));
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: value = -1; break;
        default:
            if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult set_function_attribute(const CompiledFunction& code, std::map<int, int>& set, CUfunction_attribute attribute,
                                int value) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > kMaxSharedBytes - static_cast<int>(code.shared_bytes)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if (value < -1 || value > 100) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            break;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    set[attribute] = value;
    return CUDA_SUCCESS;
}

CUresult param_info(const CompiledFunction& code, std::size_t index, std::size_t* offset, std::size_t* size) {
    SOFTGPU_NOT_NULL(offset);
    if (index >= code.params.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *offset = code.params[index].offset_bytes;
    if (size != nullptr) {
        *size = code.params[index].size_bytes;
    }
    return CUDA_SUCCESS;
}

CUresult variable_info(const ModuleVariable* variable, CUdeviceptr* pointer, std::size_t* bytes) {
    if (pointer == nullptr && bytes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (variable == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pointer != nullptr) {
        *pointer = variable->address;
    }
    if (bytes != nullptr) {
        *bytes = variable->size_bytes;
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

namespace {

CUresult load(CUmodule* result, const void* image, const JitOptions& options) {
    SOFTGPU_CONTEXT(context);
    if (result == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::string text;
    std::shared_ptr<CompiledModule> code;
    CUresult error = compile_image(image, options, text, code);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    context->synchronize_exclusively();
    auto module = std::make_shared<Module>(context);
    if (error = module->take(std::move(code)); error != CUDA_SUCCESS) {
        return error;
    }
    state().modules.add(module);
    *result = reinterpret_cast<CUmodule>(module.get());
    return CUDA_SUCCESS;
}

#define SOFTGPU_MODULE(handle, name)                \
    SOFTGPU_READY();                                \
    const auto name = state().modules.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE
#define SOFTGPU_FUNCTION(handle, name)                \
    SOFTGPU_READY();                                  \
    const auto name = state().functions.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

}  // namespace

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
    return load(module, image, {});
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                                    void** values) {
    return load(module, image, read_jit_options(count, options, values));
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return load(module, image, {});
}

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(path);
    std::string image;
    if (const CUresult error = read_image_file(path, image); error != CUDA_SUCCESS) {
        return error;
    }
    return load(module, image.data(), {});
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
    SOFTGPU_MODULE(handle, module);
    if (module->library != nullptr) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    SOFTGPU_NOT_WHILE_CAPTURING();
    module->context->synchronize();
    if (state().modules.remove(handle) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const Module* gone = module.get();
    state().functions.remove_if([=](const Function& f) { return f.module == gone; });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    SOFTGPU_NOT_NULL(mode);
    const char* const asked = std::getenv("CUDA_MODULE_LOADING");
    *mode = asked != nullptr && std::string_view(asked) == "EAGER" ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
    SOFTGPU_MODULE(handle, module);
    if (function == nullptr || name == nullptr || name[0] == '\0') {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto found = module->function(std::string_view(name));
    if (found == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = reinterpret_cast<CUfunction>(found.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
    SOFTGPU_MODULE(handle, module);
    SOFTGPU_NOT_NULL(count);
    *count = static_cast<unsigned>(module->code->entries().size());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule handle) {
    SOFTGPU_MODULE(handle, module);
    SOFTGPU_NOT_NULL(functions);
    const auto entries = module->code->entries();
    for (unsigned i = 0; i < count && i < entries.size(); ++i) {
        functions[i] = reinterpret_cast<CUfunction>(module->function(*entries[i]).get());
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule handle, const char* name) {
    SOFTGPU_MODULE(handle, module);
    SOFTGPU_NOT_NULL(name);
    return variable_info(module->code->find_variable(name), pointer, bytes);
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
    SOFTGPU_FUNCTION(handle, function);
    SOFTGPU_NOT_NULL(value);
    const Lock lock(function->mutex);
    return function_attribute(*function->code, function->attributes, attribute, *value);
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    SOFTGPU_FUNCTION(handle, function);
    const Lock lock(function->mutex);
    return set_function_attribute(*function->code, function->attributes, attribute, value);
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache preferred) {
    SOFTGPU_FUNCTION(handle, function);
    const bool known = preferred >= CU_FUNC_CACHE_PREFER_NONE && preferred <= CU_FUNC_CACHE_PREFER_EQUAL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
    SOFTGPU_FUNCTION(handle, function);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction handle) {
    SOFTGPU_NOT_NULL(handle);
    SOFTGPU_FUNCTION(handle, function);
    SOFTGPU_NOT_NULL(module);
    *module = reinterpret_cast<CUmodule>(function->module);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
    SOFTGPU_NOT_NULL(handle);
    SOFTGPU_FUNCTION(handle, function);
    SOFTGPU_NOT_NULL(name);
    *name = function->code->name.c_str();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
    SOFTGPU_NOT_NULL(handle);
    SOFTGPU_FUNCTION(handle, function);
    return param_info(*function->code, index, offset, size);
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* loaded, CUfunction handle) {
    SOFTGPU_FUNCTION(handle, function);
    SOFTGPU_NOT_NULL(loaded);
    if (state().kernels.find(handle) != nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *loaded = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
    SOFTGPU_FUNCTION(handle, function);
    return state().kernels.find(handle) != nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // extern "C"
