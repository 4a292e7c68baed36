// Finding entry points by name.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "server/softgpu/api/objects.h"

namespace {

// The newest form that this library has of a base name: the versioned names first.
void* find(const char* symbol) {
    // Only this library's own names: RTLD_DEFAULT could find another driver's.
    static void* const self = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<void*>(&cuDriverGetVersion), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    if (self == nullptr) return nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
        if (void* found = dlsym(self, (std::string(symbol) + suffix).c_str())) return found;
    }
    return nullptr;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
    if (symbol == nullptr || function == nullptr || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    *function = std::strncmp(symbol, "cu", 2) == 0 ? find(symbol) : nullptr;
    if (status != nullptr) {
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        if (*function != nullptr && version < 2000) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
    // The private tables are the client's business: it answers them itself.
    if (table != nullptr) *table = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
