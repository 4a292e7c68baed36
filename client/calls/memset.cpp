// Memsets. They are deferred, so the client itself refuses what the driver would refuse at once. For memory that the
// client does not know, the call waits for the driver's reply. A memset without Async of host memory, or of memory with
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, waits until it is complete.

#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

// `height` rows of `width` elements, `pitch` bytes apart (0: one row).
struct Extent {
    CUdeviceptr destination;
    std::size_t element_bytes, width, pitch = 0, height = 1;

    [[nodiscard]] bool empty() const { return width == 0 || height == 0; }
};

CUresult check(const Extent& to) {
    ContextState* context = nullptr;
    const CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (to.destination % to.element_bytes != 0 || to.pitch % to.element_bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (to.empty()) {
        return CUDA_SUCCESS;
    }
    constexpr std::size_t kLimit = std::size_t{1} << 46;
    if (to.width > kLimit || to.height > kLimit || to.pitch > kLimit ||
        (to.height > 1 && to.pitch < to.width * to.element_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t bytes = (to.height - 1) * to.pitch + to.width * to.element_bytes;
    return may_hold(this_session(), to.destination, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class Call, class... Arguments>
CUresult set(const Extent& to, Arguments... arguments) {
    if (const CUresult result = check(to); result != CUDA_SUCCESS || to.empty()) {
        return result;
    }
    const auto range = this_session().memory.find(to.destination);
    const bool is_known = range && !range->idle;
    return remote_or_ask<Call>(is_known, to.destination, arguments...);
}

// The asynchronous call is sent if this one has to wait, since the driver would make the worker's dispatcher wait.
template <class Call, class Asynchronous, class... Arguments>
CUresult set_synchronously(const Extent& to, Arguments... arguments) {
    if (!is_seen_at_once(this_session(), to.destination)) {
        return set<Call>(to, arguments...);
    }
    const CUresult result = set<Asynchronous>(to, arguments..., CUstream{});
    return result == CUDA_SUCCESS && !to.empty() ? synchronize_stream(nullptr) : result;
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, std::size_t N) {
    return set_synchronously<calls::cuMemsetD8_v2, calls::cuMemsetD8Async>({dstDevice, 1, N}, uc, N);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned char uc, std::size_t Width,
                         std::size_t Height) {
    return set_synchronously<calls::cuMemsetD2D8_v2, calls::cuMemsetD2D8Async>({dstDevice, 1, Width, dstPitch, Height},
                                                                               dstPitch, uc, Width, Height);
}
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, std::size_t N, CUstream hStream) {
    return set<calls::cuMemsetD8Async>({dstDevice, 1, N}, uc, N, hStream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned char uc, std::size_t Width,
                           std::size_t Height, CUstream hStream) {
    return set<calls::cuMemsetD2D8Async>({dstDevice, 1, Width, dstPitch, Height}, dstPitch, uc, Width, Height, hStream);
}
CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, std::size_t N) {
    return set_synchronously<calls::cuMemsetD16_v2, calls::cuMemsetD16Async>({dstDevice, 2, N}, us, N);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned short us, std::size_t Width,
                          std::size_t Height) {
    return set_synchronously<calls::cuMemsetD2D16_v2, calls::cuMemsetD2D16Async>(
        {dstDevice, 2, Width, dstPitch, Height}, dstPitch, us, Width, Height);
}
CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, std::size_t N, CUstream hStream) {
    return set<calls::cuMemsetD16Async>({dstDevice, 2, N}, us, N, hStream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned short us, std::size_t Width,
                            std::size_t Height, CUstream hStream) {
    return set<calls::cuMemsetD2D16Async>({dstDevice, 2, Width, dstPitch, Height}, dstPitch, us, Width, Height,
                                          hStream);
}
CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned ui, std::size_t N) {
    return set_synchronously<calls::cuMemsetD32_v2, calls::cuMemsetD32Async>({dstDevice, 4, N}, ui, N);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned ui, std::size_t Width,
                          std::size_t Height) {
    return set_synchronously<calls::cuMemsetD2D32_v2, calls::cuMemsetD2D32Async>(
        {dstDevice, 4, Width, dstPitch, Height}, dstPitch, ui, Width, Height);
}
CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned ui, std::size_t N, CUstream hStream) {
    return set<calls::cuMemsetD32Async>({dstDevice, 4, N}, ui, N, hStream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, std::size_t dstPitch, unsigned ui, std::size_t Width,
                            std::size_t Height, CUstream hStream) {
    return set<calls::cuMemsetD2D32Async>({dstDevice, 4, Width, dstPitch, Height}, dstPitch, ui, Width, Height,
                                          hStream);
}

}  // namespace gpupool::client::entry
