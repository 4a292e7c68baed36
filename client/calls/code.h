// What launches and graphs must know of functions and kernels.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/export_tables/client_view.h"
#include "protocol/calls/call.h"

namespace gpupool::client {

// What a launch must know of a function or kernel: never changes, never freed while its module may be used.
struct FunctionInfo {
    std::string name;
    std::vector<ParameterLayout> layout;
    bool layout_known = true;
    std::size_t parameter_bytes = 0;
    CUmodule module = nullptr;    // of a function
    CUlibrary library = nullptr;  // of a kernel
    CUkernel kernel = nullptr;    // that a function belongs to
    CUfunction own = nullptr;     // this very handle
};

// Is the kernel's function in the current context known? Asking for it may make the driver load it.
bool has_function(CUkernel kernel);

// Null when the handle is no function's.
std::shared_ptr<const FunctionInfo> function_info(CUfunction function);

// The function that stands for `function` in the current context: itself, or a kernel's function there.
CUresult launchable(CUfunction& function);

int visit_functions(CUmodule module, export_tables::FunctionVisitor visit, void* user) noexcept;

}  // namespace gpupool::client
