// What launches and graph nodes need to know about functions and kernels.
//
// Ownership: shared pointers; see FunctionInfo.
// Threads: any.
// Errors: the driver's.
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

// What a launch needs to know about a function or kernel. Immutable, and alive as long as the module may be used.
struct FunctionInfo {
    std::string name;
    std::vector<ParameterLayout> layout;
    bool layout_known = true;
    std::size_t parameter_bytes = 0;
    CUmodule module = nullptr;    // for a function of a module that the program loaded
    CUlibrary library = nullptr;  // for a kernel, and a kernel's function
    CUkernel kernel = nullptr;    // the kernel that a function belongs to
    CUcontext context = nullptr;  // for a kernel's function: where it is
    CUfunction own = nullptr;     // the handle itself
    CUdevice device = -1;         // for a function: its context's device
    std::shared_ptr<FunctionAttributes> attributes = std::make_shared<FunctionAttributes>();
};

// What a launch of a function, or of a kernel in the current context, needs.
struct LaunchTarget {
    CUfunction function = nullptr;
    std::shared_ptr<const FunctionInfo> info;
    FunctionAttributes::OnDevice* attributes = nullptr;  // already loaded; valid as long as `info`
};
// Finds the target of a launch. Needs no lock for functions that this thread launched recently. Errors: the driver's;
// the first lookup may need a round trip.
CUresult find_launch_target(CUfunction function, const ContextState& context, LaunchTarget& target);

// Null if `function` is not a known handle.
std::shared_ptr<const FunctionInfo> function_info(CUfunction function);

// Like function_info(), but with the parameters' layout. A kernel that was only looked up is first loaded in the
// current context, as the driver does it; `info` is then its function's. Errors: the driver's.
CUresult function_info_with_layout(CUfunction function, std::shared_ptr<const FunctionInfo>& info);

// Forgets the functions that kernels had in a context that has ended.
void forget_kernel_functions(CUcontext context);

// Replaces a kernel's handle with its function in the current context; leaves a function's handle as it is. Errors: the
// driver's.
CUresult launchable(CUfunction& function);

int visit_functions(CUmodule module, export_tables::FunctionVisitor visit, void* user) noexcept;

}  // namespace gpupool::client
