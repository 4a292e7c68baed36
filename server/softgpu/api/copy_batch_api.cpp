// Batched copies: cuMemcpyBatchAsync and cuMemcpy3DBatchAsync, each with and without the index of the failing copy.
#include <algorithm>
#include <vector>

#include "server/softgpu/api/array.h"
#include "server/softgpu/api/copy.h"
#include "server/softgpu/api/entry_points.h"
#include "server/softgpu/graph/capture.h"

using namespace gpupool::softgpu;

namespace {

constexpr std::size_t kNoCopy = ~std::size_t{0};  // the error does not concern a single copy

bool is_access(CUmemcpySrcAccessOrder order, unsigned flags) {
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           (flags & ~static_cast<unsigned>(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)) == 0;
}

bool is_hint(const CUmemLocation& hint) {
    return hint.type == CU_MEM_LOCATION_TYPE_DEVICE
               ? hint.id >= 0 && static_cast<size_t>(hint.id) < state().devices.size()
               : hint.type >= CU_MEM_LOCATION_TYPE_INVALID && hint.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// The forms of 13.0 refuse the stream 0 even where it means the thread's default stream.
bool is_null(CUstream stream, bool newer_form) {
    return stream == nullptr && (newer_form || !PerThreadDefault::on());
}

struct BatchedCopy {
    Copy copy;
    CUmemcpySrcAccessOrder order;
};

// A stream that captures is refused; its capture stays valid.
CUresult check_stream(const StreamPtr& stream) {
    CUresult result = CUDA_SUCCESS;
    captured_or_failed(
        stream, [](PayloadPtr&) { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }, result);
    return result;
}

CUresult submit_all(const StreamPtr& stream, const std::vector<BatchedCopy>& batch) {
    for (const BatchedCopy& one : batch) {
        if (const CUresult error = submit_batched(stream, one.copy, one.order); error != CUDA_SUCCESS) {
            return error;
        }
    }
    return CUDA_SUCCESS;
}

bool attributes_fit(const CUmemcpyAttributes* attributes, const size_t* first, size_t attribute_count, size_t count) {
    if (attribute_count == 0 || attribute_count > count || first[0] != 0) {
        return false;
    }
    for (size_t i = 0; i < attribute_count; i++) {
        const CUmemcpyAttributes& each = attributes[i];
        if (first[i] >= count || (i != 0 && first[i] <= first[i - 1]) || !is_access(each.srcAccessOrder, each.flags) ||
            !is_hint(each.srcLocHint) || !is_hint(each.dstLocHint)) {
            return false;
        }
    }
    return true;
}

CUresult copy_batch(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* sizes, size_t count,
                    const CUmemcpyAttributes* attributes, const size_t* first, size_t attribute_count, size_t& failed,
                    CUstream handle) {
    failed = kNoCopy;
    if (context_stack().empty()) {
        return CUDA_ERROR_INVALID_VALUE;  // as the driver
    }
    SOFTGPU_STREAM(handle, stream);
    if (is_legacy(*stream) || to == nullptr || from == nullptr || sizes == nullptr || attributes == nullptr ||
        first == nullptr || !attributes_fit(attributes, first, attribute_count, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult unfit = check_stream(stream); unfit != CUDA_SUCCESS) {
        return unfit;
    }
    std::vector<BatchedCopy> batch;
    CUresult refused = CUDA_SUCCESS;
    for (size_t i = 0, attribute = 0; i < count; i++) {
        attribute += attribute + 1 < attribute_count && first[attribute + 1] == i ? 1 : 0;
        Copy copy;
        copy.rows.to = to[i], copy.rows.from = from[i], copy.rows.width_bytes = sizes[i];
        copy.to = copy.from = Side::unified;
        refused = sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE : check_copy(copy);
        if (refused != CUDA_SUCCESS) {
            failed = i;  // those before it are made
            break;
        }
        batch.push_back({copy, attributes[attribute].srcAccessOrder});
    }
    const CUresult submitted = submit_all(stream, batch);
    return refused != CUDA_SUCCESS ? refused : submitted;
}

// One end of a copy as CUDA_MEMCPY3D has it.
struct End {
    CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
    CUdeviceptr address = 0;
    CUarray array = nullptr;
    size_t x_bytes = 0, y = 0, z = 0, pitch_bytes = 0, height = 0;
};

bool is_well_formed(const CUmemcpy3DOperand& operand, const CUextent3D& extent) {
    const auto& place = operand.op.ptr;
    return operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
           (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
            (place.rowLength == 0 || place.rowLength >= extent.width) &&
            (place.layerHeight == 0 || place.layerHeight >= extent.height));
}

bool is_well_formed(const CUDA_MEMCPY3D_BATCH_OP& op) {
    const CUextent3D& extent = op.extent;
    return extent.width != 0 && extent.height != 0 && extent.depth != 0 && is_access(op.srcAccessOrder, op.flags) &&
           is_well_formed(op.src, extent) && is_well_formed(op.dst, extent);
}

// Sets the size of an array's elements; both arrays of a copy must have the same.
CUresult find_element(const CUmemcpy3DOperand& operand, size_t& element) {
    if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        return CUDA_SUCCESS;
    }
    if (operand.op.array.array == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto array = state().arrays.find(operand.op.array.array);
    if (array == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (element != 0 && element != array->element_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    element = array->element_bytes;
    return CUDA_SUCCESS;
}

CUresult find_end(const CUmemcpy3DOperand& operand, const CUextent3D& extent, size_t element, End& end) {
    if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const auto& place = operand.op.array;
        end.type = CU_MEMORYTYPE_ARRAY, end.array = place.array;
        end.x_bytes = place.offset.x * element, end.y = place.offset.y, end.z = place.offset.z;
        return CUDA_SUCCESS;
    }
    const auto& place = operand.op.ptr;
    const size_t row = place.rowLength != 0 ? place.rowLength : extent.width;
    end.address = place.ptr;
    end.height = place.layerHeight != 0 ? place.layerHeight : extent.height;
    return __builtin_mul_overflow(row, element, &end.pitch_bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult place_op(const CUDA_MEMCPY3D_BATCH_OP& op, Copy& copy) {
    const CUextent3D& extent = op.extent;
    size_t element = 0;
    for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
        if (const CUresult error = find_element(*operand, element); error != CUDA_SUCCESS) {
            return error;
        }
    }
    element = element == 0 ? 1 : element;
    End from, to;
    if (const CUresult error = find_end(op.src, extent, element, from); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult error = find_end(op.dst, extent, element, to); error != CUDA_SUCCESS) {
        return error;
    }
    CUDA_MEMCPY3D d{};
    if (__builtin_mul_overflow(extent.width, element, &d.WidthInBytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    d.Height = extent.height, d.Depth = extent.depth;
    d.srcMemoryType = from.type, d.srcDevice = from.address, d.srcArray = from.array;
    d.srcXInBytes = from.x_bytes, d.srcY = from.y, d.srcZ = from.z;
    d.srcPitch = from.pitch_bytes, d.srcHeight = from.height;
    d.dstMemoryType = to.type, d.dstDevice = to.address, d.dstArray = to.array;
    d.dstXInBytes = to.x_bytes, d.dstY = to.y, d.dstZ = to.z;
    d.dstPitch = to.pitch_bytes, d.dstHeight = to.height;
    const CUresult error = place_copy(d, copy);
    return error != CUDA_SUCCESS ? error : check_copy(copy);
}

CUresult copy_batch_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags, size_t& failed,
                       CUstream handle) {
    failed = kNoCopy;
    if (context_stack().empty()) {
        return CUDA_ERROR_INVALID_VALUE;  // as the driver
    }
    SOFTGPU_STREAM(handle, stream);
    if (is_legacy(*stream) || ops == nullptr || count == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = check_stream(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    const auto* const wrong = std::find_if(ops, ops + count, [](const auto& op) { return !is_well_formed(op); });
    if (wrong != ops + count) {
        failed = static_cast<size_t>(wrong - ops);
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<BatchedCopy> batch;
    CUresult refused = CUDA_SUCCESS;  // the driver does not say for which copy
    for (size_t i = 0; i < count && refused == CUDA_SUCCESS; i++) {
        Copy copy;
        refused = place_op(ops[i], copy);
        if (refused == CUDA_SUCCESS) {
            batch.push_back({copy, ops[i].srcAccessOrder});
        }
    }
    const CUresult error = submit_all(stream, batch);
    return refused != CUDA_SUCCESS ? refused : error;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                    CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                                    size_t* failed_copy, CUstream stream) {
    if (is_null(stream, false)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t failed = kNoCopy;
    const CUresult result = copy_batch(to, from, sizes, count, attributes, first, attribute_count, failed, stream);
    if (failed_copy != nullptr) {
        *failed_copy = failed;
    }
    return result;
}

CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                       CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                                       CUstream stream) {
    size_t failed = kNoCopy;
    return is_null(stream, true)
               ? CUDA_ERROR_INVALID_VALUE
               : copy_batch(to, from, sizes, count, attributes, first, attribute_count, failed, stream);
}

CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed_copy,
                                      unsigned long long flags, CUstream stream) {
    if (is_null(stream, false)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t failed = kNoCopy;
    const CUresult result = copy_batch_3d(count, ops, flags, failed, stream);
    if (failed_copy != nullptr) {
        *failed_copy = failed;
    }
    return result;
}

CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                                         CUstream stream) {
    size_t failed = kNoCopy;
    return is_null(stream, true) ? CUDA_ERROR_INVALID_VALUE : copy_batch_3d(count, ops, flags, failed, stream);
}

}  // extern "C"
