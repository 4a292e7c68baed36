// Batches of copies with several rows or with arrays (cuMemcpy3DBatchAsync).

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "client/calls/copy_batch.h"
#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "protocol/codec/struct_traits.h"

namespace gpupool::client::entry {
namespace {

// An array's size in elements.
struct ArraySize {
    std::size_t element_bytes = 0;
    std::size_t width = 0, height = 0, depth = 0;
};

std::size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array) {
    switch (array.Format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return array.NumChannels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return std::size_t{2} * array.NumChannels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return std::size_t{4} * array.NumChannels;
        default: return 0;  // blocks of texels, planes: not understood
    }
}

// Asks for the size of each array of a batch once.
class ArraySizes {
  public:
    // Null if there is no such array.
    const ArraySize* of(CUarray array) {
        const auto [entry, is_new] = known_.try_emplace(array);
        CUDA_ARRAY3D_DESCRIPTOR about{};
        if (is_new && remote<calls::cuArray3DGetDescriptor_v2>(&about, array) == CUDA_SUCCESS) {
            entry->second = ArraySize{element_bytes(about), about.Width, std::max<std::size_t>(about.Height, 1),
                                      std::max<std::size_t>(about.Depth, 1)};
        }
        return entry->second ? &*entry->second : nullptr;
    }

  private:
    std::unordered_map<CUarray, std::optional<ArraySize>> known_;
};

bool is_array(const CUmemcpy3DOperand& operand) {
    return codec::number_of(operand.type) == CU_MEMCPY_OPERAND_TYPE_ARRAY;
}

// Are type, row length and layer height valid? The address is not checked.
bool is_well_formed(const CUmemcpy3DOperand& operand, const CUextent3D& extent) {
    if (is_array(operand)) {
        return true;
    }
    const auto& place = operand.op.ptr;
    return codec::number_of(operand.type) == CU_MEMCPY_OPERAND_TYPE_POINTER &&
           (place.rowLength == 0 || place.rowLength >= extent.width) &&
           (place.layerHeight == 0 || place.layerHeight >= extent.height);
}

bool is_well_formed(const CUDA_MEMCPY3D_BATCH_OP& op) {
    const CUextent3D& extent = op.extent;
    return extent.width != 0 && extent.height != 0 && extent.depth != 0 &&
           is_valid_access(op.srcAccessOrder, op.flags) && is_well_formed(op.src, extent) &&
           is_well_formed(op.dst, extent);
}

// May the array's end of the copy be copied? Sets its element's size.
CUresult check_array(ArraySizes& sizes, const CUmemcpy3DOperand& operand, const CUextent3D& extent,
                     std::size_t& bytes) {
    if (!is_array(operand)) {
        return CUDA_SUCCESS;
    }
    const ArraySize* const size = operand.op.array.array == nullptr ? nullptr : sizes.of(operand.op.array.array);
    if (size == nullptr) {
        return operand.op.array.array == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    const auto fits = [](std::size_t offset, std::size_t count, std::size_t limit) {
        return offset <= limit && count <= limit - offset;
    };
    const CUoffset3D& offset = operand.op.array.offset;
    if (size->element_bytes == 0 || (bytes != 0 && bytes != size->element_bytes) ||
        !fits(offset.x, extent.width, size->width) || !fits(offset.y, extent.height, size->height) ||
        !fits(offset.z, extent.depth, size->depth)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bytes = size->element_bytes;
    return CUDA_SUCCESS;
}

// One end of a copy as CUDA_MEMCPY3D has it.
struct End {
    CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
    CUdeviceptr address = 0;
    CUarray array = nullptr;
    std::size_t x_bytes = 0, y = 0, z = 0, pitch_bytes = 0, height = 0;
};

CUresult to_end(const Session& s, const CUmemcpy3DOperand& operand, const CUextent3D& extent, std::size_t element,
                End& end) {
    if (is_array(operand)) {
        const CUoffset3D& offset = operand.op.array.offset;
        end.type = CU_MEMORYTYPE_ARRAY;
        end.array = operand.op.array.array;
        end.x_bytes = offset.x * element, end.y = offset.y, end.z = offset.z;
        return CUDA_SUCCESS;
    }
    constexpr std::size_t kLimit = std::size_t{1} << 46;
    const auto& place = operand.op.ptr;
    const std::size_t row = place.rowLength != 0 ? place.rowLength : extent.width;
    end.address = place.ptr;
    end.height = place.layerHeight != 0 ? place.layerHeight : extent.height;
    if (end.address == 0 || row > kLimit / element || end.height > kLimit / (row * element) ||
        extent.depth > kLimit / (row * element * end.height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    end.pitch_bytes = row * element;
    const std::size_t reach =
        ((extent.depth - 1) * end.height + extent.height - 1) * end.pitch_bytes + extent.width * element;
    return may_hold(s, end.address, reach) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_MEMCPY3D to_shape(const End& src, const End& dst, const CUextent3D& extent, std::size_t element) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = src.type;
    c.srcDevice = src.address, c.srcArray = src.array;
    c.srcXInBytes = src.x_bytes, c.srcY = src.y, c.srcZ = src.z;
    c.srcPitch = src.pitch_bytes, c.srcHeight = src.height;
    c.dstMemoryType = dst.type;
    c.dstDevice = dst.address, c.dstArray = dst.array;
    c.dstXInBytes = dst.x_bytes, c.dstY = dst.y, c.dstZ = dst.z;
    c.dstPitch = dst.pitch_bytes, c.dstHeight = dst.height;
    c.WidthInBytes = extent.width * element, c.Height = extent.height, c.Depth = extent.depth;
    return c;
}

// Are the bytes of this end one piece?
bool is_contiguous(const CUDA_MEMCPY3D& c, std::size_t pitch_bytes, std::size_t height) {
    return (c.Height == 1 || pitch_bytes == c.WidthInBytes) &&
           (c.Depth == 1 || (pitch_bytes == c.WidthInBytes && height == c.Height));
}

bool is_one_row(const CUDA_MEMCPY3D& c) {
    return c.srcMemoryType == CU_MEMORYTYPE_UNIFIED && c.dstMemoryType == CU_MEMORYTYPE_UNIFIED &&
           is_contiguous(c, c.srcPitch, c.srcHeight) && is_contiguous(c, c.dstPitch, c.dstHeight);
}

class Batch3D {
  public:
    Batch3D(Session& s, CUstream stream) : s_(s), stream_(stream), rows_(s, stream) {}

    CUresult add(const CUDA_MEMCPY3D_BATCH_OP& op) {
        const CUextent3D& extent = op.extent;
        std::size_t element = 0;
        CUresult result = check_array(sizes_, op.src, extent, element);
        if (result == CUDA_SUCCESS) {
            result = check_array(sizes_, op.dst, extent, element);
        }
        element = std::max<std::size_t>(element, 1);
        End src, dst;
        if (result == CUDA_SUCCESS) {
            result = to_end(s_, op.src, extent, element, src);
        }
        if (result == CUDA_SUCCESS) {
            result = to_end(s_, op.dst, extent, element, dst);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        const CUDA_MEMCPY3D c = to_shape(src, dst, extent, element);
        if (is_one_row(c)) {
            return rows_.add(dst.address, src.address, c.WidthInBytes * c.Height * c.Depth, op.srcAccessOrder);
        }
        const bool during = op.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        shapes_.push_back({c, during ? Reads::at_once : Reads::in_order});
        is_awaited_ = is_awaited_ || during;
        return CUDA_SUCCESS;
    }

    CUresult send() {
        CUresult result = rows_.send();
        for (std::size_t i = 0; i < shapes_.size() && result == CUDA_SUCCESS; ++i) {
            result = copy_shaped(shapes_[i].shape, stream_, Waiting::as_asynchronous, shapes_[i].reads);
        }
        return end_copy(result, is_awaited_, stream_);
    }

  private:
    struct Shaped {
        CUDA_MEMCPY3D shape;
        Reads reads;
    };

    Session& s_;
    const CUstream stream_;
    ArraySizes sizes_;
    CopyBatch rows_;
    std::vector<Shaped> shapes_;
    bool is_awaited_ = false;  // a source must have been read when the call returns
};

// If a copy is malformed, `failed` is its index and no copy is made. If a well-formed copy is refused, the copies
// before it are made.
CUresult copy_batch_3d(std::size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                       std::size_t& failed, CUstream stream) {
    failed = kNoCopy;
    Session* s = nullptr;
    if (const CUresult result = begin_batch(s, stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (ops == nullptr || count == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_batch_stream(*s, stream); result != CUDA_SUCCESS) {
        return result;
    }
    const auto* const wrong = std::find_if(ops, ops + count, [](const auto& op) { return !is_well_formed(op); });
    if (wrong != ops + count) {
        failed = static_cast<std::size_t>(wrong - ops);
        return CUDA_ERROR_INVALID_VALUE;
    }
    Batch3D batch(*s, stream);
    CUresult refused = CUDA_SUCCESS;  // the driver does not say for which copy
    for (std::size_t i = 0; i < count && refused == CUDA_SUCCESS; ++i) {
        refused = batch.add(ops[i]);
    }
    const CUresult result = batch.send();
    return refused != CUDA_SUCCESS ? refused : result;
}

}  // namespace

CUresult cuMemcpy3DBatchAsync(std::size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, std::size_t* failIdx,
                              unsigned long long flags, CUstream hStream) {
    if (hStream == nullptr && !this_thread().per_thread_default) {
        return CUDA_ERROR_INVALID_VALUE;  // leaves `failIdx` as it is
    }
    std::size_t failed = kNoCopy;
    const CUresult result = copy_batch_3d(numOps, opList, flags, failed, hStream);
    if (failIdx != nullptr) {
        *failIdx = failed;
    }
    return result;
}

CUresult cuMemcpy3DBatchAsync_v2(std::size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags,
                                 CUstream hStream) {
    std::size_t failed = kNoCopy;
    // The driver refuses 0 even where it means the thread's default stream.
    return hStream == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_batch_3d(numOps, opList, flags, failed, hStream);
}

}  // namespace gpupool::client::entry
