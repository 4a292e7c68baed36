// Code: images travel once, by content; libraries are loaded when one of their kernels is first needed.

#include "client/calls/code.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>

#include "client/calls/handlers.h"
#include "client/calls/jit_options.h"
#include "client/core/remote.h"
#include "common/fatbin/image.h"
#include "common/fatbin/select.h"
#include "common/hash.h"
#include "common/log.h"

namespace gpupool::client {
namespace {

constexpr unsigned kLayoutCapacity = 64;
constexpr unsigned kMaxParameters = 4096;

// ---- images

// What has to travel of an image: the entries that the session's devices can use.
Result<std::vector<std::byte>> portable_image(const Session& s, const void* image) {
    Result<fatbin::Image> whole = fatbin::inspect_trusted(image);
    if (!whole) {
        return whole.error();
    }
    const auto all = [&] { return std::vector<std::byte>(whole->bytes.begin(), whole->bytes.end()); };
    if (whole->form == fatbin::Form::cubin || whole->form == fatbin::Form::ptx) {
        return all();
    }
    Result<std::vector<fatbin::Entry>> entries = fatbin::container_entries(whole->bytes);
    if (!entries) {
        return entries.error();
    }
    std::vector<fatbin::Entry> chosen;
    for (const Device& device : s.devices.devices) {
        fatbin::ComputeCapability capability;
        int major = 0, minor = 0;
        device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
        device.attributes.get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
        capability.major = static_cast<std::uint32_t>(major);
        capability.minor = static_cast<std::uint32_t>(minor);
        const auto preference = s.devices.software || std::getenv("CUDA_FORCE_PTX_JIT") != nullptr
                                    ? fatbin::Preference::ptx_only
                                    : fatbin::Preference::as_driver;
        for (const fatbin::Entry& entry : fatbin::select(*entries, capability, preference)) {
            const bool there = std::any_of(chosen.begin(), chosen.end(), [&](const fatbin::Entry& other) {
                return other.whole.data() == entry.whole.data();
            });
            if (!there) {
                chosen.push_back(entry);
            }
        }
    }
    // Nothing fits: the server's driver is to say so, in its own words.
    return chosen.empty() ? Result<std::vector<std::byte>>(all()) : fatbin::repack(chosen);
}

template <class Call, class Handle>
CUresult load_image(Handle* handle, std::span<const std::byte> image, const JitOptions& options) {
    ImageHash hash{};
    CUresult result = send_image(image, hash);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::vector<char> log(options.log_bytes() + 1);
    result = remote<Call>(handle, &hash, options.names.data(), options.values.data(),
                          static_cast<unsigned>(options.names.size()), log.data(), options.log_bytes());
    give_log(options, log);
    return result;
}

// ---- what is known

struct Library {
    std::mutex loading;
    std::vector<std::byte> image;     // until it is loaded
    const void* preserved = nullptr;  // the application's, which keeps it in place
    JitOptions options;
    bool loaded = false;
    CUlibrary remote_handle = nullptr;  // the server's name for it
    std::map<std::string, CUkernel> kernels;
    CUmodule module = nullptr;
};

struct Module {
    std::mutex resolving;
    std::map<std::string, CUfunction> functions;
};

struct Registry {
    std::mutex mutex;
    std::unordered_map<CUlibrary, std::shared_ptr<Library>> libraries;
    std::unordered_map<CUmodule, std::shared_ptr<Module>> modules;
    std::unordered_map<CUfunction, std::shared_ptr<const FunctionInfo>> functions;  // kernels too
    std::map<std::pair<CUkernel, CUcontext>, CUfunction> kernel_functions;
};
Registry& registry() {
    static auto& instance = *new Registry;
    return instance;
}

std::shared_ptr<Library> find_library(CUlibrary handle) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto it = r.libraries.find(handle);
    return it == r.libraries.end() ? nullptr : it->second;
}

std::shared_ptr<Module> find_module(CUmodule handle) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto it = r.modules.find(handle);
    return it == r.modules.end() ? nullptr : it->second;
}

void know_module(CUmodule handle) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    r.modules.emplace(handle, std::make_shared<Module>());
}

void know_function(CUfunction handle, FunctionInfo info) {
    for (const ParameterLayout& parameter : info.layout) {
        info.parameter_bytes =
            std::max<std::size_t>(info.parameter_bytes, parameter.offset_bytes + parameter.size_bytes);
    }
    info.own = handle;
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    r.functions[handle] = std::make_shared<const FunctionInfo>(std::move(info));
}

CUresult ensure_loaded(Library& library) {
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
    result = load_image<calls::gpLibraryLoad>(&library.remote_handle, image, library.options);
    library.loaded = result == CUDA_SUCCESS;
    if (!library.loaded) {
        library.image = std::move(image);
    }
    return result;
}

// Asks for a name's handle and layout, and again when it has more parameters than fit the first answer.
template <class Call, class Owner, class Handle>
CUresult resolve(Owner owner, const char* name, Handle& handle, FunctionInfo& info) {
    info.name = name;
    info.layout.resize(kLayoutCapacity);
    unsigned count = 0;
    CUresult result = remote<Call>(&handle, owner, name, info.layout.data(), kLayoutCapacity, &count);
    info.layout_known = count != kUnknownLayout;
    if (!info.layout_known) {
        info.layout.clear();
        return result;
    }
    if (result == CUDA_SUCCESS && count > kLayoutCapacity) {
        if (count > kMaxParameters) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        info.layout.resize(count);
        result = remote<Call>(&handle, owner, name, info.layout.data(), count, &count);
    }
    info.layout.resize(std::min<std::size_t>(count, info.layout.size()));
    return result;
}

CUresult get_kernel(CUlibrary handle, Library& library, const char* name, CUkernel& kernel) {
    const std::lock_guard lock(library.loading);
    if (const auto it = library.kernels.find(name); it != library.kernels.end()) {
        kernel = it->second;
        return CUDA_SUCCESS;
    }
    CUresult result = ensure_loaded(library);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    FunctionInfo info;
    result = resolve<calls::gpKernelResolve>(library.remote_handle, name, kernel, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    info.library = handle;
    info.kernel = kernel;
    library.kernels[name] = kernel;
    know_function(reinterpret_cast<CUfunction>(kernel), std::move(info));
    return CUDA_SUCCESS;
}

CUresult get_function(CUmodule handle, Module& module, const char* name, CUfunction& function) {
    const std::lock_guard lock(module.resolving);
    if (const auto it = module.functions.find(name); it != module.functions.end()) {
        function = it->second;
        return CUDA_SUCCESS;
    }
    FunctionInfo info;
    const CUresult result = resolve<calls::gpFunctionResolve>(handle, name, function, info);
    if (result == CUDA_SUCCESS) {
        info.module = handle;
        module.functions[name] = function;
        know_function(function, std::move(info));
    }
    return result;
}

// All names that `Call` lists for `owner`.
template <class Call, class Owner>
CUresult list_names(Owner owner, std::vector<std::string>& names) {
    std::vector<char> text(16u << 10);
    std::size_t needed = 0;
    CUresult result = remote<Call>(owner, text.data(), text.size(), &needed);
    if (result == CUDA_SUCCESS && needed > text.size()) {
        if (needed > codec::kMaxArrayElements) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        text.resize(needed);
        result = remote<Call>(owner, text.data(), text.size(), &needed);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (std::size_t at = 0; at < std::min(needed, text.size());) {
        names.emplace_back(text.data() + at, strnlen(text.data() + at, text.size() - at));
        at += names.back().size() + 1;
    }
    return CUDA_SUCCESS;
}

void forget_functions_of(CUmodule module, CUlibrary library) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    std::erase_if(r.functions, [&](const auto& entry) {
        return (module != nullptr && entry.second->module == module) ||
               (library != nullptr && entry.second->library == library);
    });
    if (module != nullptr) {
        r.modules.erase(module);
    }
    if (library != nullptr) {
        std::erase_if(r.kernel_functions, [&](const auto& entry) { return !r.functions.contains(entry.second); });
        r.libraries.erase(library);
    }
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
    Result<std::vector<std::byte>> bytes = portable_image(this_session(), image);
    if (!bytes) {
        log::error("a code image cannot be read: {}", bytes.error().message);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    result = load_image<calls::gpModuleLoad>(module, *bytes, options);
    if (result == CUDA_SUCCESS) {
        know_module(*module);
    }
    return result;
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
        entry->image = std::move(*image);
    }
    // Only what stays in place and reports nothing may be loaded later; of the rest the verdict is wanted now.
    if (!preserved || wants_log) {
        result = ensure_loaded(*entry);
        entry->options = {};
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    const auto handle = codec::from_wire<CUlibrary>(s->mint(codec::HandleKind::library));
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    r.libraries[handle] = std::move(entry);
    *library = handle;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult send_image(std::span<const std::byte> image, ImageHash& hash) {
    const Fingerprint fingerprint = gpupool::fingerprint(image);
    hash = {fingerprint.low, fingerprint.high};
    unsigned known = 0;
    CUresult result = remote<calls::gpImageOffer>(&hash, std::uint64_t{image.size()}, &known);
    if (result != CUDA_SUCCESS || known != 0) {
        return result;
    }
    constexpr std::size_t kPartBytes = 128u << 10;
    for (std::size_t offset = 0; offset < image.size() && result == CUDA_SUCCESS; offset += kPartBytes) {
        const std::size_t bytes = std::min(kPartBytes, image.size() - offset);
        result = remote<calls::gpImageData>(&hash, std::uint64_t{offset},
                                            reinterpret_cast<const unsigned char*>(image.data() + offset), bytes);
    }
    return result;
}

bool read_file(const char* path, std::vector<char>& content) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return false;
    }
    content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    content.push_back('\0');  // PTX is text
    return true;
}

std::shared_ptr<const FunctionInfo> function_info(CUfunction function) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto it = r.functions.find(function);
    return it == r.functions.end() ? nullptr : it->second;
}

CUresult launchable(CUfunction& function) {
    if (codec::kind_of(codec::to_wire(function)) != codec::HandleKind::kernel) {
        return CUDA_SUCCESS;
    }
    return entry::cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(function));
}

bool has_function(CUkernel kernel) {
    const ContextState* const context = this_thread().current();
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    return context != nullptr && r.kernel_functions.contains({kernel, context->handle});
}

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
    if (fname == nullptr || !read_file(fname, content)) {
        return fname == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    return load_module(module, content.data(), {});
}

CUresult cuModuleUnload(CUmodule hmod) {
    if (find_module(hmod) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const CUresult result = remote<calls::cuModuleUnload>(hmod);
    forget_functions_of(hmod, nullptr);
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
    CUdeviceptr address = 0;
    std::size_t size = 0;
    const CUresult result = remote<calls::cuModuleGetGlobal_v2>(&address, &size, hmod, name);
    if (result == CUDA_SUCCESS) {
        CUresult ignored = CUDA_SUCCESS;
        Session* s = session(ignored);
        s->memory.add({address, size, MemoryKind::global, this_thread().current()->device, this_thread().current()});
        if (dptr != nullptr) {
            *dptr = address;
        }
        if (bytes != nullptr) {
            *bytes = size;
        }
    }
    return result;
}

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
    if (fileName == nullptr || !read_file(fileName, content)) {
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
        const std::lock_guard lock(known->loading);
        if (known->loaded) {
            result = remote<calls::cuLibraryUnload>(known->remote_handle);
        }
    }
    forget_functions_of(known->module, library);
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
    const CUresult result = get_kernel(library, *known, name, kernel);
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
    const std::lock_guard lock(known->loading);
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
    session(ignored)->memory.add(
        {address, size, MemoryKind::global, context == nullptr ? 0 : context->device, context});
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
        result = get_kernel(lib, *known, names[i].c_str(), kernels[i]);
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
    const std::lock_guard lock(known->loading);
    if (known->module == nullptr) {
        result = remote<calls::gpLibraryModule>(&known->module, known->remote_handle);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        know_module(known->module);
    }
    *pMod = known->module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
    return library_global<calls::cuLibraryGetGlobal>(dptr, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
    return library_global<calls::cuLibraryGetManaged>(dptr, bytes, library, name);
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
    Registry& r = registry();
    const std::pair key(kernel, context->handle);
    {
        const std::lock_guard lock(r.mutex);
        if (const auto it = r.kernel_functions.find(key); it != r.kernel_functions.end()) {
            *pFunc = it->second;
            return CUDA_SUCCESS;
        }
    }
    CUfunction function = nullptr;
    result = remote<calls::gpKernelFunction>(&function, kernel);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    FunctionInfo known = *info;
    if (!known.layout_known) {
        // The kernel was looked up before there was a context.
        const std::shared_ptr<Library> library = find_library(info->library);
        CUkernel again = nullptr;
        result = library == nullptr
                     ? CUDA_ERROR_INVALID_HANDLE
                     : resolve<calls::gpKernelResolve>(library->remote_handle, info->name.c_str(), again, known);
        if (result != CUDA_SUCCESS || !known.layout_known) {
            return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
        }
        known.library = info->library;
        known.kernel = kernel;
    }
    know_function(function, std::move(known));
    const std::lock_guard lock(r.mutex);
    *pFunc = r.kernel_functions.emplace(key, function).first->second;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
    const auto info = function_info(reinterpret_cast<CUfunction>(kernel));
    if (pLib == nullptr || info == nullptr) {
        return pLib == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *pLib = info->library;
    return CUDA_SUCCESS;
}

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

}  // namespace entry
}  // namespace gpupool::client
