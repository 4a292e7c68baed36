// Libraries and their kernels. A library is loaded when one of its kernels is first needed.

#include <algorithm>
#include <cstring>

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/core/images/code_registry.h"
#include "client/core/images/images.h"
#include "common/log.h"

namespace gpupool::client {
namespace {

CUresult ensure_loaded(Library& library) GP_REQUIRES(library.loading) {
    if (library.loaded) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    const Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    std::vector<std::byte> image = std::move(library.image);
    if (library.preserved != nullptr) {
        Result<std::vector<std::byte>> read = portable_image(*s, library.preserved);
        if (!read) {
            log::error("a code image cannot be read: {}", read.error().message);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        image = std::move(*read);
    }
    result = entry::make_with_reclaim(
        [&] { return load_image<calls::gpLibraryLoad>(&library.remote_handle, image, library.options); });
    library.loaded = result == CUDA_SUCCESS;
    if (!library.loaded) {
        library.image = std::move(image);
    }
    return result;
}

KernelLoad what_to_load(const Library& library, const ContextState& context) GP_REQUIRES(library.loading) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const bool is_loaded =
        std::any_of(library.kernels.begin(), library.kernels.end(), [&](const auto& entry) GP_REQUIRES(r.mutex) {
            return r.kernel_functions.contains({entry.second, context.handle});
        });
    return is_loaded ? KernelLoad::always : KernelLoad::on_idle_gpu;
}

// `loads`: also get the function in the current context, because the program will probably launch it next.
CUresult get_kernel(CUlibrary handle, Library& library, const char* name, bool loads, CUkernel& kernel) {
    const Lock lock(library.loading);
    if (const auto it = library.kernels.find(name); it != library.kernels.end()) {
        kernel = it->second;
        return CUDA_SUCCESS;
    }
    CUresult result = ensure_loaded(library);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    FunctionInfo info;
    info.name = name;
    ContextState* context = nullptr;
    loads = loads && usable_context(context) == CUDA_SUCCESS;
    const KernelLoad load = loads ? what_to_load(library, *context) : KernelLoad::never;
    CUfunction function = nullptr;
    unsigned loaded = 0;
    auto attributes = FunctionAttributes::OnDevice::unknown();
    result = ask_for_layout(info, [&](ParameterLayout* layout, unsigned capacity, unsigned* count) {
        return remote<calls::gpKernelResolve>(&kernel, library.remote_handle, name, load, layout, capacity, count,
                                              &function, &loaded, attributes.data(),
                                              static_cast<unsigned>(attributes.size()));
    });
    if (result != CUDA_SUCCESS) {
        return result;
    }
    info.library = handle;
    info.kernel = kernel;
    library.kernels[name] = kernel;
    if (loaded != 0 && info.layout_known) {
        info.attributes->learn(context->device, attributes);
        add_kernel_function(kernel, context->owner().handle, function, info);
    }
    add_function(reinterpret_cast<CUfunction>(kernel), std::move(info));
    return CUDA_SUCCESS;
}

CUresult load_library(CUlibrary* library, const void* code, JitOptions options, bool preserved) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (library == nullptr || code == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    count_registered(code);
    auto entry = std::make_shared<Library>();
    const bool wants_log = options.log_bytes() != 0;
    entry->options = std::move(options);
    if (preserved) {
        entry->preserved = code;
    } else {
        Result<std::vector<std::byte>> image = portable_image(*s, code);
        if (!image) {
            log::error("a code image cannot be read: {}", image.error().message);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        const Lock lock(entry->loading);
        entry->image = std::move(*image);
    }
    // Only an image that stays in place and needs no log may be loaded later. Otherwise the program expects the result
    // now.
    if (!preserved || wants_log) {
        const Lock lock(entry->loading);
        result = ensure_loaded(*entry);
        entry->options = {};
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    const auto handle = codec::from_wire<CUlibrary>(s->mint(codec::HandleKind::library));
    Registry& r = registry();
    const Lock lock(r.mutex);
    r.libraries[handle] = std::move(entry);
    *library = handle;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult find_kernel(CUlibrary library, const char* name, CUkernel& kernel) {
    const std::shared_ptr<Library> known = find_library(library);
    return known == nullptr ? CUDA_ERROR_INVALID_HANDLE : get_kernel(library, *known, name, false, kernel);
}

CUresult launchable(CUfunction& function) {
    if (codec::kind_of(codec::to_wire(function)) != codec::HandleKind::kernel) {
        return CUDA_SUCCESS;
    }
    return entry::cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(function));
}

namespace entry {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions, void** jitOptionsValues,
                           unsigned numJitOptions, CUlibraryOption* libraryOptions, void**,
                           unsigned numLibraryOptions) {
    bool preserved = false;
    for (unsigned i = 0; i < numLibraryOptions && libraryOptions != nullptr; ++i) {
        preserved = preserved || libraryOptions[i] == CU_LIBRARY_BINARY_IS_PRESERVED;
    }
    return load_library(library, code, take_options(numJitOptions, jitOptions, jitOptionsValues), preserved);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned numJitOptions, CUlibraryOption*, void**, unsigned) {
    std::vector<char> content;
    if (fileName == nullptr || !read_image_file(fileName, content)) {
        return fileName == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    return load_library(library, content.data(), take_options(numJitOptions, jitOptions, jitOptionsValues), false);
}

CUresult cuLibraryUnload(CUlibrary library) {
    const std::shared_ptr<Library> known = find_library(library);
    if (known == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = CUDA_SUCCESS;
    {
        const Lock lock(known->loading);
        if (known->loaded) {
            result = remote<calls::cuLibraryUnload>(known->remote_handle);
        }
    }
    forget_functions_of(nullptr, library);
    return result;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
    if (pKernel == nullptr || name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Library> known = find_library(library);
    if (known == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUkernel kernel = nullptr;
    const CUresult result = get_kernel(library, *known, name, true, kernel);
    if (result == CUDA_SUCCESS) {
        *pKernel = kernel;
    }
    return result;
}

namespace {

CUresult loaded_library(CUlibrary library, std::shared_ptr<Library>& known) {
    known = find_library(library);
    if (known == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const Lock lock(known->loading);
    return ensure_loaded(*known);
}

CUresult library_names(CUlibrary library, std::shared_ptr<Library>& known, std::vector<std::string>& names) {
    const CUresult result = loaded_library(library, known);
    return result != CUDA_SUCCESS ? result : list_names<calls::gpLibraryNames>(known->remote_handle, names);
}

template <class Call>
CUresult library_global(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
    std::shared_ptr<Library> known;
    CUresult result = loaded_library(library, known);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUdeviceptr address = 0;
    std::size_t size = 0;
    result = remote<Call>(&address, &size, known->remote_handle, name);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUresult ignored = CUDA_SUCCESS;
    ContextState* context = this_thread().current();
    session(ignored)->memory.add({address, size, MemoryKind::global, context == nullptr ? 0 : context->device,
                                  context == nullptr ? nullptr : &context->owner()});
    if (dptr != nullptr) {
        *dptr = address;
    }
    if (bytes != nullptr) {
        *bytes = size;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary lib) {
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Library> known;
    std::vector<std::string> names;
    const CUresult result = library_names(lib, known, names);
    if (result == CUDA_SUCCESS) {
        *count = static_cast<unsigned>(names.size());
    }
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned numKernels, CUlibrary lib) {
    if (kernels == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Library> known;
    std::vector<std::string> names;
    CUresult result = library_names(lib, known, names);
    for (unsigned i = 0; i < numKernels && i < names.size() && result == CUDA_SUCCESS; ++i) {
        result = get_kernel(lib, *known, names[i].c_str(), false, kernels[i]);
    }
    return result;
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
    if (pMod == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Library> known;
    CUresult result = loaded_library(library, known);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    ContextState* context = nullptr;
    result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const Lock lock(known->loading);
    CUmodule module = find_library_module(library, context->owner().handle);
    if (module == nullptr) {
        result = remote<calls::gpLibraryModule>(&module, known->remote_handle);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        module = add_library_module(library, context->owner().handle, module);
    }
    *pMod = module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
    return library_global<calls::cuLibraryGetGlobal>(dptr, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
    return library_global<calls::cuLibraryGetManaged>(dptr, bytes, library, name);
}

CUresult cuLibraryGetUnifiedFunction(void** fptr, CUlibrary library, const char*) {
    if (fptr == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // As the driver of a library without unified functions, which need one address space for host and GPU.
    return find_library(library) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
    if (pFunc == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto info = function_info(reinterpret_cast<CUfunction>(kernel));
    if (info == nullptr || info->kernel != kernel) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUfunction function = find_kernel_function(kernel, context->owner().handle);
    if (function != nullptr) {
        *pFunc = function;
        return CUDA_SUCCESS;
    }
    FunctionInfo known = *info;
    auto attributes = FunctionAttributes::OnDevice::unknown();
    result = make_with_reclaim([&] {
        return ask_for_layout(known, [&](ParameterLayout* layout, unsigned capacity, unsigned* count) {
            return remote<calls::gpKernelFunction>(&function, kernel, layout, capacity, count, attributes.data(),
                                                   static_cast<unsigned>(attributes.size()));
        });
    });
    if (result != CUDA_SUCCESS || !known.layout_known) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
    }
    info->attributes->learn(context->device, attributes);
    *pFunc = add_kernel_function(kernel, context->owner().handle, function, std::move(known));
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
    const auto info = function_info(reinterpret_cast<CUfunction>(kernel));
    if (pLib == nullptr || info == nullptr || info->kernel != kernel) {
        return pLib == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *pLib = info->library;
    return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace gpupool::client
