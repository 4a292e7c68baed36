// Memory of cuMemCreate as a file descriptor. The descriptor names the memory; it does not contain it. So the process
// that exported it can import it, and no other process can: that import fails.

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"
#include "common/log.h"
#include "protocol/transport/shm/memory.h"

namespace gpupool::client::entry {
namespace {

// What the descriptor's file contains.
struct Export {
    std::array<char, 8> magic;
    std::array<unsigned char, 16> session;  // of the session whose memory it is
    CUmemGenericAllocationHandle handle;
};
constexpr std::array<char, 8> kMagic = {'g', 'p', 'u', 'p', 'o', 'o', 'l', '1'};

const std::array<unsigned char, 16>& this_session_name() {
    static const auto name = [] {
        std::array<unsigned char, 16> random{};
        (void)::getrandom(random.data(), random.size(), 0);
        return random;
    }();
    return name;
}

}  // namespace

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUmemAllocationProp properties{};
    const CUresult result = remote<calls::cuMemGetAllocationPropertiesFromHandle>(&properties, handle);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (shareableHandle == nullptr || flags != 0 || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (properties.requestedHandleTypes & handleType) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto file = transport::shm::SharedMemory::make_file("gpupool-export", sizeof(Export));
    const Export content = {kMagic, this_session_name(), handle};
    if (!file || ::pwrite(file->get(), &content, sizeof content, 0) != sizeof content) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    const int descriptor = ::fcntl(file->get(), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *static_cast<int*>(shareableHandle) = descriptor;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
    CUresult result = CUDA_SUCCESS;
    if (session(result) == nullptr) {
        return result;
    }
    Export content{};
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(osHandle));
    if (handle == nullptr || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        ::pread(descriptor, &content, sizeof content, 0) != sizeof content || content.magic != kMagic) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (content.session != this_session_name()) {
        log::warn("the program imports GPU memory of another process: gpupool cannot share memory between processes");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return remote<calls::gpMemReopen>(content.handle, handle);
}

}  // namespace gpupool::client::entry
