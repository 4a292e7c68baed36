// The modules, libraries, kernels and functions that the client knows. Shared by the calls of module.cpp, library.cpp
// and function.cpp.
//
// Ownership: an entry lives as long as its module or library, and as long as a shared pointer to it.
// Threads: any; the registry's mutex is never held during a round trip.
// Errors: the driver's.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"
#include "client/core/images/jit_options.h"
#include "common/mutex.h"

namespace gpupool::client {

struct Library {
    Mutex loading;
    std::vector<std::byte> image GP_GUARDED_BY(loading);  // kept until it is loaded
    // image of the application, which keeps it in place (CU_LIBRARY_BINARY_IS_PRESERVED)
    const void* preserved = nullptr;
    JitOptions options;
    bool loaded GP_GUARDED_BY(loading) = false;
    CUlibrary remote_handle = nullptr;  // the handle that the server knows
    std::map<std::string, CUkernel> kernels GP_GUARDED_BY(loading);
};

struct Module {
    Module() = default;
    Module(CUlibrary of, CUcontext in) : library(of), context(in) {}

    // For a library's module in a context: its functions are those of the library's kernels there.
    const CUlibrary library = nullptr;
    const CUcontext context = nullptr;
    Mutex resolving;
    std::map<std::string, CUfunction> functions GP_GUARDED_BY(resolving);
};

struct Registry {
    Mutex mutex;
    std::unordered_map<CUlibrary, std::shared_ptr<Library>> libraries GP_GUARDED_BY(mutex);
    std::unordered_map<CUmodule, std::shared_ptr<Module>> modules GP_GUARDED_BY(mutex);
    // Including kernels.
    std::unordered_map<CUfunction, std::shared_ptr<const FunctionInfo>> functions GP_GUARDED_BY(mutex);
    std::map<std::pair<CUkernel, CUcontext>, CUfunction> kernel_functions GP_GUARDED_BY(mutex);
    std::map<std::pair<CUlibrary, CUcontext>, CUmodule> library_modules GP_GUARDED_BY(mutex);
    std::atomic<std::uint64_t> generation{1};  // incremented when known handles are forgotten
};
Registry& registry();

// Null if the handle is not known.
std::shared_ptr<Library> find_library(CUlibrary handle);
std::shared_ptr<Module> find_module(CUmodule handle);

void add_module(CUmodule handle);
void add_function(CUfunction handle, FunctionInfo info);
// Registers a kernel's function in a context. Returns the registered one, which another thread may have added first.
CUfunction add_kernel_function(CUkernel kernel, CUcontext context, CUfunction function, FunctionInfo info);
// Null if it is not known.
CUfunction find_kernel_function(CUkernel kernel, CUcontext context);
// The same for a library's module in a context.
CUmodule add_library_module(CUlibrary library, CUcontext context, CUmodule module);
CUmodule find_library_module(CUlibrary library, CUcontext context);
// Looks a library's kernel up by name.
CUresult find_kernel(CUlibrary library, const char* name, CUkernel& kernel);
// Forgets the module or library that is not null, and its functions.
void forget_functions_of(CUmodule module, CUlibrary library);

// Gets the layout from `ask(layout, capacity, count)`. Asks again if there are more parameters than fit into the first
// answer.
template <class Ask>
CUresult ask_for_layout(FunctionInfo& info, Ask ask) {
    constexpr unsigned kLayoutCapacity = 64, kMaxParameters = 4096;
    info.layout.resize(kLayoutCapacity);
    unsigned count = 0;
    CUresult result = ask(info.layout.data(), kLayoutCapacity, &count);
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
        result = ask(info.layout.data(), count, &count);
    }
    info.layout.resize(std::min<std::size_t>(count, info.layout.size()));
    return result;
}

// Appends all names that `Call` lists for `owner`.
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

}  // namespace gpupool::client
