// Memsets: deferred, so that what the driver would refuse at once is refused here.

#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "client/core/remote.h"

namespace gpupool::client::entry {
namespace {

// `height` rows of `width` elements, `pitch` bytes apart (0: one row).
CUresult check(CUdeviceptr destination, std::size_t element_bytes, std::size_t width, std::size_t pitch,
               std::size_t height) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (destination % element_bytes != 0 || pitch % element_bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width == 0 || height == 0) {
        return CUDA_SUCCESS;
    }
    constexpr std::size_t kLimit = std::size_t{1} << 46;
    if (width > kLimit || height > kLimit || pitch > kLimit || (height > 1 && pitch < width * element_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t bytes = (height - 1) * pitch + width * element_bytes;
    return may_hold(this_session(), destination, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, std::size_t N) {
    const CUresult result = check(dstDevice, 1, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD8_v2>(dstDevice, uc, N);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned char uc, std::size_t Width,
                         std::size_t Height) {
    const CUresult result = check(dstDevice, 1, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D8_v2>(dstDevice, dstPitch, uc, Width, Height);
}
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, std::size_t N, CUstream hStream) {
    const CUresult result = check(dstDevice, 1, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD8Async>(dstDevice, uc, N, hStream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned char uc, std::size_t Width,
                           std::size_t Height, CUstream hStream) {
    const CUresult result = check(dstDevice, 1, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D8Async>(dstDevice, dstPitch, uc, Width, Height, hStream);
}
CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, std::size_t N) {
    const CUresult result = check(dstDevice, 2, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD16_v2>(dstDevice, us, N);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned short us, std::size_t Width,
                          std::size_t Height) {
    const CUresult result = check(dstDevice, 2, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D16_v2>(dstDevice, dstPitch, us, Width, Height);
}
CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, std::size_t N, CUstream hStream) {
    const CUresult result = check(dstDevice, 2, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD16Async>(dstDevice, us, N, hStream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned short us, std::size_t Width,
                            std::size_t Height, CUstream hStream) {
    const CUresult result = check(dstDevice, 2, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D16Async>(dstDevice, dstPitch, us, Width, Height, hStream);
}
CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned ui, std::size_t N) {
    const CUresult result = check(dstDevice, 4, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD32_v2>(dstDevice, ui, N);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned ui, std::size_t Width,
                          std::size_t Height) {
    const CUresult result = check(dstDevice, 4, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D32_v2>(dstDevice, dstPitch, ui, Width, Height);
}
CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned ui, std::size_t N, CUstream hStream) {
    const CUresult result = check(dstDevice, 4, N, 0, 1);
    return result != CUDA_SUCCESS || N == 0 ? result : remote<calls::cuMemsetD32Async>(dstDevice, ui, N, hStream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned ui, std::size_t Width,
                            std::size_t Height, CUstream hStream) {
    const CUresult result = check(dstDevice, 4, Width, dstPitch, Height);
    return result != CUDA_SUCCESS || Width == 0 || Height == 0
               ? result
               : remote<calls::cuMemsetD2D32Async>(dstDevice, dstPitch, ui, Width, Height, hStream);
}

}  // namespace gpupool::client::entry
