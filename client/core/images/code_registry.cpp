#include "client/core/images/code_registry.h"

#include <algorithm>

#include "client/core/dispatch/recent_lookups.h"

namespace gpupool::client {

Registry& registry() {
    static auto& instance = *new Registry;
    return instance;
}

std::shared_ptr<Library> find_library(CUlibrary handle) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const auto it = r.libraries.find(handle);
    return it == r.libraries.end() ? nullptr : it->second;
}

std::shared_ptr<Module> find_module(CUmodule handle) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const auto it = r.modules.find(handle);
    return it == r.modules.end() ? nullptr : it->second;
}

void add_module(CUmodule handle) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    r.modules.emplace(handle, std::make_shared<Module>());
}

void add_function(CUfunction handle, FunctionInfo info) {
    for (const ParameterLayout& parameter : info.layout) {
        info.parameter_bytes =
            std::max<std::size_t>(info.parameter_bytes, parameter.offset_bytes + parameter.size_bytes);
    }
    info.own = handle;
    const ContextState* const context = this_thread().current();
    info.device = context == nullptr ? -1 : context->device;
    Registry& r = registry();
    const Lock lock(r.mutex);
    r.functions[handle] = std::make_shared<const FunctionInfo>(std::move(info));
}

CUfunction add_kernel_function(CUkernel kernel, CUcontext context, CUfunction function, FunctionInfo info) {
    info.context = context;
    add_function(function, std::move(info));
    Registry& r = registry();
    const Lock lock(r.mutex);
    return r.kernel_functions.emplace(std::pair(kernel, context), function).first->second;
}

CUfunction find_kernel_function(CUkernel kernel, CUcontext context) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const auto it = r.kernel_functions.find({kernel, context});
    return it == r.kernel_functions.end() ? nullptr : it->second;
}

CUmodule add_library_module(CUlibrary library, CUcontext context, CUmodule module) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const CUmodule kept = r.library_modules.emplace(std::pair(library, context), module).first->second;
    r.modules.emplace(kept, std::make_shared<Module>(library, context));
    return kept;
}

CUmodule find_library_module(CUlibrary library, CUcontext context) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const auto it = r.library_modules.find({library, context});
    return it == r.library_modules.end() ? nullptr : it->second;
}

void forget_functions_of(CUmodule module, CUlibrary library) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    r.generation.fetch_add(1, std::memory_order_release);
    std::erase_if(r.functions, [&](const auto& entry) {
        return (module != nullptr && entry.second->module == module) ||
               (library != nullptr && entry.second->library == library);
    });
    if (module != nullptr) {
        r.modules.erase(module);
    }
    if (library != nullptr) {
        std::erase_if(r.kernel_functions,
                      [&](const auto& entry) GP_REQUIRES(r.mutex) { return !r.functions.contains(entry.second); });
        std::erase_if(r.library_modules, [&](const auto& entry) { return entry.first.first == library; });
        std::erase_if(r.modules, [&](const auto& entry) { return entry.second->library == library; });
        r.libraries.erase(library);
    }
}

void forget_kernel_functions(CUcontext context) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    r.generation.fetch_add(1, std::memory_order_release);
    std::erase_if(r.kernel_functions, [&](const auto& entry) GP_REQUIRES(r.mutex) {
        if (entry.first.second != context) {
            return false;
        }
        r.functions.erase(entry.second);
        return true;
    });
    std::erase_if(r.library_modules, [&](const auto& entry) { return entry.first.second == context; });
    std::erase_if(r.modules, [&](const auto& entry) {
        return entry.second->library != nullptr && entry.second->context == context;
    });
}

CUresult find_launch_target(CUfunction function, const ContextState& context, LaunchTarget& target) {
    constexpr std::size_t kKnown = 64;
    thread_local RecentLookups<CUfunction, LaunchTarget, kKnown> known;
    const std::uint64_t generation = registry().generation.load(std::memory_order_acquire);
    auto& place = known.place_of(function);
    if (!place.holds(function, &context, generation)) {
        LaunchTarget found{function, nullptr, nullptr};
        CUresult result = launchable(found.function);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        found.info = function_info(found.function);
        found.attributes = found.info == nullptr ? nullptr : found.info->attributes->on(context.device);
        if (found.attributes == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        place = {function, &context, generation, std::move(found)};
    }
    target = place.value;
    return target.attributes->load(target.function, context.device);
}

std::shared_ptr<const FunctionInfo> function_info(CUfunction function) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    const auto it = r.functions.find(function);
    return it == r.functions.end() ? nullptr : it->second;
}

CUresult function_info_with_layout(CUfunction function, std::shared_ptr<const FunctionInfo>& info) {
    info = function_info(function);
    if (info != nullptr && !info->layout_known) {
        if (const CUresult result = launchable(function); result != CUDA_SUCCESS) {
            return result;
        }
        info = function_info(function);
    }
    return info == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // namespace gpupool::client
