// What launches and graphs must know of functions and kernels.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/images/function_attributes.h"
#include "client/core/session/contexts.h"
#include "protocol/calls/call.h"
#include "protocol/export_tables/client_view.h"

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
    CUdevice device = -1;         // of a function: its context's
    std::shared_ptr<FunctionAttributes> attributes = std::make_shared<FunctionAttributes>();
};

// What launches of a function, or of a kernel in the current context, need.
struct LaunchTarget {
    CUfunction function = nullptr;
    std::shared_ptr<const FunctionInfo> info;
    FunctionAttributes::OnDevice* attributes = nullptr;  // loaded; lives as long as `info`
};
// What this thread launched last is found without a lock. Errors: the driver's, also when the server has to be asked.
CUresult find_launch_target(CUfunction function, const ContextState& context, LaunchTarget& target);

// Null when the handle is no function's.
std::shared_ptr<const FunctionInfo> function_info(CUfunction function);

// The same where the layout is wanted: a kernel that was only looked up is loaded in the current context, as natively,
// and its function's stands for it. Errors: the driver's.
CUresult function_info_with_layout(CUfunction function, std::shared_ptr<const FunctionInfo>& info);

// The functions that kernels had in a context that has ended.
void forget_kernel_functions(CUcontext context);

// The function that stands for `function` in the current context: itself, or a kernel's function there.
CUresult launchable(CUfunction& function);

int visit_functions(CUmodule module, export_tables::FunctionVisitor visit, void* user) noexcept;

}  // namespace gpupool::client
