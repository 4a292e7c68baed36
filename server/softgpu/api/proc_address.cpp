// Finds entry points by name, by rules measured on the real driver. Among the symbols of a base name it chooses the one
// with the highest version not above the requested one. With the per-thread flag it chooses the per-thread form, if
// there is one. If this library does not implement the chosen symbol, the result is "not found", and not an older form
// with other parameters.
#include <dlfcn.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/softgpu/api/entry_points.h"
#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

void* find_entry_point(const char* symbol) {
    static void* const self = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<void*>(&cuDriverGetVersion), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    return self == nullptr ? nullptr : dlsym(self, symbol);
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

namespace {

struct Form {
    int since;
    bool per_thread;
    const char* symbol;
    const char* plain;  // the same function without per-thread default stream
};
using Index = std::unordered_map<std::string_view, std::vector<Form>>;

const Index& index() {
    static const Index& forms = *[] {
        auto* table = new Index;
        std::unordered_map<std::string_view, std::string_view> base_of;
#define GP_CALL(op, symbol, base, since, ...) \
    base_of[#symbol] = #base;                 \
    (*table)[#base].push_back({since, false, #symbol, #symbol});
#define GP_PER_THREAD(symbol, suffix, since, ...) \
    (*table)[base_of[#symbol]].push_back({since, true, #symbol #suffix, #symbol});
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
        return table;
    }();
    return forms;
}

constexpr cuuint64_t kKnownFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

// `status` is the outcome of the search; the returned error only concerns the arguments.
CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult& status) {
    int newest = 0;
    cuDriverGetVersion(&newest);
    if (name == nullptr || function == nullptr || (flags & ~kKnownFlags) != 0 || version > newest) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = nullptr;
    status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const auto found = index().find(name);
    if (found == index().end()) {
        return CUDA_SUCCESS;
    }
    bool per_thread = false;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        for (const Form& form : found->second) {
            per_thread |= form.per_thread;
        }
    }
    const Form* best = nullptr;
    for (const Form& form : found->second) {
        if (form.per_thread == per_thread && form.since <= version && (best == nullptr || form.since > best->since)) {
            best = &form;
        }
    }
    if (best == nullptr) {
        status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    }
    // The per-thread form is always exported, but the function that it calls may be missing.
    *function = find_entry_point(best->plain) == nullptr ? nullptr : find_entry_point(best->symbol);
    if (*function != nullptr) {
        status = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = look_up(symbol, function, version, flags, status);
    return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
    auto found = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = look_up(symbol, function, version, flags, found);
    if (result == CUDA_SUCCESS && status != nullptr) {
        *status = found;
    }
    return result;
}

}  // extern "C"
