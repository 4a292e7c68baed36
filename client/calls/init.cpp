// Initialisation, versions, error texts, private tables.

#include <cstring>

#include "client/calls/handlers.h"
#include "client/core/session/runtime.h"
#include "client/error_text.h"
#include "protocol/calls/identity.h"
#include "protocol/export_tables/registry.h"

namespace gpupool::client::entry {

CUresult cuInit(unsigned Flags) {
    return initialize(Flags);
}

CUresult cuDriverGetVersion(int* driverVersion) {
    if (driverVersion == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Without a server, this build's own version: cuInit reports the failure.
    const Session* session = connect_session();
    *driverVersion = session == nullptr ? CUDA_VERSION : session->devices.driver_version;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** pStr) {
    if (pStr == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = error_text::name(error);
    return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** pStr) {
    if (pStr == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = error_text::description(error);
    return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
    if (ppExportTable == nullptr || pExportTableId == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (std::memcmp(pExportTableId, &calls::kClientIdentity, sizeof(CUuuid)) == 0) {
        static const std::size_t identity = sizeof identity;
        *ppExportTable = &identity;
        return CUDA_SUCCESS;
    }
    *ppExportTable = export_tables::find(*pExportTableId);
    return *ppExportTable == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    CUresult result = CUDA_SUCCESS;
    const Session* s = session(result);
    if (s != nullptr && mode == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s != nullptr) {
        *mode = s->devices.loading_mode;
    }
    return result;
}

CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gpupool::client::entry
