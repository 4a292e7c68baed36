// Finding entry points by name.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "server/softgpu/api/objects.h"

namespace {

// Forms with other parameters than the one before, and the version from which a program means them by the base name.
constexpr struct {
    const char* symbol;
    int since;
} newer_forms[] = {
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
};

bool is_meant(const std::string& symbol, int version) {
    for (const auto& form : newer_forms) {
        if (symbol == form.symbol) return version >= form.since;
    }
    return true;
}

// The newest form of a base name that this library has and a program of that version means.
void* find(const char* symbol, int version) {
    // Only this library's own names: RTLD_DEFAULT could find another driver's.
    static void* const self = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<void*>(&cuDriverGetVersion), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    if (self == nullptr) return nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
        const std::string name = std::string(symbol) + suffix;
        if (!is_meant(name, version)) continue;
        if (void* found = dlsym(self, name.c_str())) return found;
    }
    return nullptr;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
    if (symbol == nullptr || function == nullptr || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    *function = std::strncmp(symbol, "cu", 2) == 0 ? find(symbol, version) : nullptr;
    if (status != nullptr) {
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        if (*function != nullptr && version < 2000) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
