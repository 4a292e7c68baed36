// Libraries: images loaded without a context, with one module per context that uses them.
#include "server/softgpu/api/functions.h"
#include "server/softgpu/api/image.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

CUresult Library::module(const ContextPtr& context, std::shared_ptr<Module>& result) {
    UniqueLock lock(mutex);
    // A reset of the primary context destroyed its modules.
    const auto is_there = [&]() GP_REQUIRES(mutex) {
        result = modules[context.get()];
        return result != nullptr && state().modules.find(result.get()) != nullptr;
    };
    if (is_there()) {
        return CUDA_SUCCESS;
    }
    lock.unlock();
    context->synchronize_exclusively();
    lock.lock();
    if (is_there()) {
        return CUDA_SUCCESS;
    }
    auto& found = modules[context.get()];
    found = std::make_shared<Module>(context);
    found->library = this;
    std::shared_ptr<CompiledModule> compiled =
        code;  // the first context takes this code and its variables; later contexts compile their own
    if (code_taken) {
        std::string message;
        if (const CUresult error = compile_text(text, max_registers, compiled, message); error != CUDA_SUCCESS) {
            return error;
        }
    }
    if (const CUresult error = found->take(std::move(compiled)); error != CUDA_SUCCESS) {
        return error;
    }
    code_taken = true;
    state().modules.add(found);
    result = found;
    return CUDA_SUCCESS;
}

std::vector<ContextPtr> Library::contexts() {
    const Lock lock(mutex);
    std::vector<ContextPtr> found;
    for (const auto& [context, module] : modules) {
        if (module != nullptr && state().modules.find(module.get()) != nullptr) {
            found.push_back(module->context);
        }
    }
    return found;
}

std::shared_ptr<Kernel> Library::kernel(const CompiledFunction& from) {
    const Lock lock(mutex);
    auto& found = kernels[&from];
    if (found == nullptr) {
        found = std::make_shared<Kernel>();
        found->library = this;
        found->code = &from;
        state().kernels.add(found);
    }
    return found;
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

namespace {

CUresult load(CUlibrary* result, const void* image, const JitOptions& options) {
    SOFTGPU_READY();
    if (result == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto library = std::make_shared<Library>();
    library->max_registers = options.max_registers;
    if (const CUresult error = compile_image(image, options, library->text, library->code); error != CUDA_SUCCESS) {
        return error;
    }
    state().libraries.add(library);
    *result = reinterpret_cast<CUlibrary>(library.get());
    return CUDA_SUCCESS;
}

#define SOFTGPU_LIBRARY(handle, name)                 \
    SOFTGPU_READY();                                  \
    const auto name = state().libraries.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE
#define SOFTGPU_KERNEL(handle, name)                \
    SOFTGPU_READY();                                \
    const auto name = state().kernels.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

CUresult variable(const CompiledModule& code, bool managed, const char* name, CUdeviceptr* pointer, size_t* bytes) {
    SOFTGPU_NOT_NULL(name);
    const auto* found = code.find_variable(name);
    return variable_info(found != nullptr && found->managed == managed ? found : nullptr, pointer, bytes);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char*) {
    SOFTGPU_LIBRARY(handle, library);
    return CUDA_ERROR_INVALID_VALUE;  // as for a library without such functions
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                                   unsigned count, CUlibraryOption*, void**, unsigned) {
    // The image is copied at once, so the option to preserve it does not matter.
    return load(library, code, read_jit_options(count, options, values));
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                                       unsigned count, CUlibraryOption*, void**, unsigned) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(path);
    std::string image;
    if (const CUresult error = read_image_file(path, image); error != CUDA_SUCCESS) {
        return error;
    }
    return load(library, image.data(), read_jit_options(count, options, values));
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
    SOFTGPU_LIBRARY(handle, library);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (state().libraries.remove(handle) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const ContextPtr& context : library->contexts()) {
        context->synchronize_exclusively();
    }
    const Library* gone = library.get();
    state().kernels.remove_if([=](const Kernel& k) { return k.library == gone; });
    state().functions.remove_if([=](const Function& f) { return f.module->library == gone; });
    state().modules.remove_if([=](const Module& m) { return m.library == gone; });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
    SOFTGPU_LIBRARY(handle, library);
    if (kernel == nullptr || name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto* entry : library->code->entries()) {
        if (entry->name != name) {
            continue;
        }
        *kernel = reinterpret_cast<CUkernel>(library->kernel(*entry).get());
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
    SOFTGPU_LIBRARY(handle, library);
    SOFTGPU_NOT_NULL(count);
    *count = static_cast<unsigned>(library->code->entries().size());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary handle) {
    SOFTGPU_LIBRARY(handle, library);
    if (kernels == nullptr && count != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto entries = library->code->entries();
    for (unsigned i = 0; i < count && i < entries.size(); ++i) {
        kernels[i] = reinterpret_cast<CUkernel>(library->kernel(*entries[i]).get());
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* result, CUlibrary handle) {
    SOFTGPU_LIBRARY(handle, library);
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(result);
    std::shared_ptr<Module> module;
    const CUresult error = library->module(context, module);
    if (error == CUDA_SUCCESS) {
        *result = reinterpret_cast<CUmodule>(module.get());
    }
    return error;
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary handle, const char* name) {
    SOFTGPU_LIBRARY(handle, library);
    SOFTGPU_CONTEXT(context);
    std::shared_ptr<Module> module;
    if (const CUresult error = library->module(context, module); error != CUDA_SUCCESS) {
        return error;
    }
    return variable(*module->code, false, name, pointer, bytes);
}

// Managed variables belong to no context and may be requested before there is one. They are those of the first
// context's code.
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* pointer, size_t* bytes, CUlibrary handle, const char* name) {
    SOFTGPU_LIBRARY(handle, library);
    return variable(*library->code, true, name, pointer, bytes);
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* result, CUkernel handle) {
    SOFTGPU_KERNEL(handle, kernel);
    SOFTGPU_NOT_NULL(result);
    std::shared_ptr<Function> function;
    const CUresult error = find_function(reinterpret_cast<CUfunction>(handle), function);
    if (error == CUDA_SUCCESS) {
        *result = reinterpret_cast<CUfunction>(function.get());
    }
    return error;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
    SOFTGPU_KERNEL(handle, kernel);
    SOFTGPU_NOT_NULL(library);
    *library = reinterpret_cast<CUlibrary>(kernel->library);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel handle) {
    SOFTGPU_NOT_NULL(handle);
    SOFTGPU_KERNEL(handle, kernel);
    SOFTGPU_NOT_NULL(name);
    *name = kernel->code->name.c_str();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
    SOFTGPU_NOT_NULL(handle);
    SOFTGPU_KERNEL(handle, kernel);
    // Like the real driver, loads the kernel's module.
    std::shared_ptr<Function> loaded;
    const CUresult error = find_function(reinterpret_cast<CUfunction>(handle), loaded);
    return error != CUDA_SUCCESS ? error : param_info(*kernel->code, index, offset, size);
}

CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
    SOFTGPU_KERNEL(handle, kernel);
    SOFTGPU_NOT_NULL(value);
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(kernel->mutex);
    return function_attribute(*kernel->code, kernel->attributes, attribute, *value);
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
    SOFTGPU_KERNEL(handle, kernel);
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(kernel->mutex);
    if (const CUresult error = set_function_attribute(*kernel->code, kernel->attributes, attribute, value);
        error != CUDA_SUCCESS) {
        return error;
    }
    // Existing functions get the value too.
    const Lock library_lock(kernel->library->mutex);
    for (const auto& [context, module] : kernel->library->modules) {
        if (context->device != found) {
            continue;
        }
        const auto function = module->function(std::string_view(kernel->code->name));
        const Lock function_lock(function->mutex);
        function->attributes[attribute] = value;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
    SOFTGPU_KERNEL(handle, kernel);
    return CUDA_SUCCESS;
}

}  // extern "C"
