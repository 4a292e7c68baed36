// Modules, libraries, kernels and functions as the client knows them: what the calls of module.cpp, library.cpp and
// function.cpp share.
//
// Ownership: entries live as long as their module or library, and as long as somebody holds them. Threads: any; the
//   registry's mutex is never held while a call travels. Errors: the driver's.
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
    std::vector<std::byte> image GP_GUARDED_BY(loading);  // until it is loaded
    const void* preserved = nullptr;                      // the application's, which keeps it in place
    JitOptions options;
    bool loaded GP_GUARDED_BY(loading) = false;
    CUlibrary remote_handle = nullptr;  // the server's name for it
    std::map<std::string, CUkernel> kernels GP_GUARDED_BY(loading);
    CUmodule module = nullptr;
};

struct Module {
    Mutex resolving;
    std::map<std::string, CUfunction> functions GP_GUARDED_BY(resolving);
};

struct Registry {
    Mutex mutex;
    std::unordered_map<CUlibrary, std::shared_ptr<Library>> libraries GP_GUARDED_BY(mutex);
    std::unordered_map<CUmodule, std::shared_ptr<Module>> modules GP_GUARDED_BY(mutex);
    std::unordered_map<CUfunction, std::shared_ptr<const FunctionInfo>> functions GP_GUARDED_BY(mutex);  // kernels too
    std::map<std::pair<CUkernel, CUcontext>, CUfunction> kernel_functions GP_GUARDED_BY(mutex);
    std::atomic<std::uint64_t> generation{1};  // changes when a handle that was known is forgotten
};
Registry& registry();

// Null where there is none.
std::shared_ptr<Library> find_library(CUlibrary handle);
std::shared_ptr<Module> find_module(CUmodule handle);

void know_module(CUmodule handle);
void know_function(CUfunction handle, FunctionInfo info);
// Of the one that is not null, which goes with them.
void forget_functions_of(CUmodule module, CUlibrary library);

// Learns the layout by `ask(layout, capacity, count)`: once more when there are more parameters than fit the first
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

}  // namespace gpupool::client
