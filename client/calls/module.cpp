// Modules: loaded at once; functions are looked up by name.

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/core/images/code_registry.h"
#include "client/core/images/images.h"
#include "common/log.h"

namespace gpupool::client {
namespace {

// For a library's module. `info`: of the kernel; `function`: the kernel's function, null if it is not known yet.
CUresult find_by_kernel(const Module& module, const char* name, FunctionInfo& info, CUfunction& function) {
    CUkernel kernel = nullptr;
    if (const CUresult result = find_kernel(module.library, name, kernel); result != CUDA_SUCCESS) {
        return result;
    }
    const auto known = function_info(reinterpret_cast<CUfunction>(kernel));
    if (known == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;  // the library was unloaded meanwhile
    }
    info = *known;
    function = find_kernel_function(kernel, module.context);
    return CUDA_SUCCESS;
}

CUresult get_function(CUmodule handle, Module& module, const char* name, CUfunction& function) {
    const Lock lock(module.resolving);
    if (const auto it = module.functions.find(name); it != module.functions.end()) {
        function = it->second;
        return CUDA_SUCCESS;
    }
    FunctionInfo info;
    info.name = name;
    if (module.library != nullptr) {
        const CUresult found = find_by_kernel(module, name, info, function);
        if (found != CUDA_SUCCESS || function != nullptr) {
            return found;
        }
    }
    auto attributes = FunctionAttributes::OnDevice::unknown();
    const CUresult result = entry::make_with_reclaim([&] {
        return ask_for_layout(info, [&](ParameterLayout* layout, unsigned capacity, unsigned* count) {
            return remote<calls::gpFunctionResolve>(&function, handle, name, layout, capacity, count, attributes.data(),
                                                    static_cast<unsigned>(attributes.size()));
        });
    });
    if (result == CUDA_SUCCESS) {
        if (const ContextState* const context = this_thread().current()) {
            info.attributes->learn(context->device, attributes);
        }
        if (module.library != nullptr) {
            function = add_kernel_function(info.kernel, module.context, function, info);
        } else {
            info.module = handle;
            add_function(function, std::move(info));
        }
        module.functions[name] = function;
    }
    return result;
}

CUresult load_module(CUmodule* module, const void* image, const JitOptions& options) {
    if (module == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    count_registered(image);
    Result<std::vector<std::byte>> bytes = portable_image(this_session(), image);
    if (!bytes) {
        log::error("a code image cannot be read: {}", bytes.error().message);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    result = entry::make_with_reclaim([&] { return load_image<calls::gpModuleLoad>(module, *bytes, options); });
    if (result == CUDA_SUCCESS) {
        add_module(*module);
    }
    return result;
}

}  // namespace

int visit_functions(CUmodule module, export_tables::FunctionVisitor visit, void* user) noexcept {
    const std::shared_ptr<Module> known = find_module(module);
    std::vector<std::string> names;
    if (known == nullptr || list_names<calls::gpModuleNames>(module, names) != CUDA_SUCCESS) {
        return 0;
    }
    int visited = 0;
    for (const std::string& name : names) {
        CUfunction function = nullptr;
        if (get_function(module, *known, name.c_str(), function) == CUDA_SUCCESS) {
            visit(user, function, function_info(function)->name.c_str());
            ++visited;
        }
    }
    return visited;
}

namespace entry {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return load_module(module, image, {});
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned numOptions, CUjit_option* options,
                            void** optionValues) {
    return load_module(module, image, take_options(numOptions, options, optionValues));
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
    return load_module(module, fatCubin, {});
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
    std::vector<char> content;
    if (fname == nullptr || !read_image_file(fname, content)) {
        return fname == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    return load_module(module, content.data(), {});
}

CUresult cuModuleUnload(CUmodule hmod) {
    if (find_module(hmod) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const CUresult result = remote<calls::cuModuleUnload>(hmod);
    if (result == CUDA_SUCCESS) {
        forget_functions_of(hmod, nullptr);
    }
    return result;
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
    if (hfunc == nullptr || name == nullptr || name[0] == '\0') {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Module> module = find_module(hmod);
    if (module == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUfunction function = nullptr;
    const CUresult result = get_function(hmod, *module, name, function);
    if (result == CUDA_SUCCESS) {
        *hfunc = function;
    }
    return result;
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule mod) {
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<std::string> names;
    const CUresult result = list_names<calls::gpModuleNames>(mod, names);
    if (result == CUDA_SUCCESS) {
        *count = static_cast<unsigned>(names.size());
    }
    return result;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned numFunctions, CUmodule mod) {
    const std::shared_ptr<Module> module = find_module(mod);
    if (functions == nullptr || module == nullptr) {
        return functions == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    std::vector<std::string> names;
    CUresult result = list_names<calls::gpModuleNames>(mod, names);
    for (unsigned i = 0; i < numFunctions && i < names.size() && result == CUDA_SUCCESS; ++i) {
        result = get_function(mod, *module, names[i].c_str(), functions[i]);
    }
    return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, std::size_t* bytes, CUmodule hmod, const char* name) {
    if (dptr == nullptr && bytes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdeviceptr address = 0;
    std::size_t size = 0;
    const CUresult result = remote<calls::cuModuleGetGlobal_v2>(&address, &size, hmod, name);
    if (result == CUDA_SUCCESS) {
        CUresult ignored = CUDA_SUCCESS;
        Session* s = session(ignored);
        ContextState& context = this_thread().current()->owner();
        s->memory.add({address, size, MemoryKind::global, context.device, &context});
        if (dptr != nullptr) {
            *dptr = address;
        }
        if (bytes != nullptr) {
            *bytes = size;
        }
    }
    return result;
}

}  // namespace entry
}  // namespace gpupool::client
