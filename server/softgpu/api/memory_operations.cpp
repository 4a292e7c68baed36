// Stream memory operations.
#include "server/softgpu/api/memory_operations.h"

#include <sched.h>

#include <thread>

#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/graph/capture.h"
#include "server/softgpu/graph/payload.h"

namespace gpupool::softgpu {
namespace {

using Operation = CUstreamBatchMemOpParams;

bool satisfied(std::uint64_t have, std::uint64_t want, unsigned flags, bool wide) {
    switch (flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return wide ? static_cast<std::int64_t>(have - want) >= 0
                        : static_cast<std::int32_t>(static_cast<std::uint32_t>(have - want)) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ: return have == want;
        case CU_STREAM_WAIT_VALUE_AND: return (have & want) != 0;
        default: return (wide ? ~(have | want) : ~(have | want) & 0xFFFFFFFF) != 0;
    }
}

bool is_wide(const Operation& operation) {
    return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
           operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

// Waits and writes have their address and flags at the same offsets.
CUresult check(const Operation& operation) {
    unsigned known_flags = 0;
    switch (operation.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: known_flags = 3U | CU_STREAM_WAIT_VALUE_FLUSH; break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: known_flags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER; break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER: return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    if ((operation.waitValue.flags & ~known_flags) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t address = operation.waitValue.address;
    const std::uint64_t bytes = is_wide(operation) ? 8 : 4;
    if (address % bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool there = AddressSpace::instance().covers(address, bytes) || GraphMemory::reserves(address, bytes);
    return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class T>
CUresult wait(std::uint64_t address, T value, unsigned flags, const Context& context) {
    for (int round = 0; !context.stop.load(); ++round) {
        if (!AddressSpace::instance().covers(address, sizeof(T))) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        const T have = __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
        if (satisfied(have, value, flags, sizeof(T) == 8)) {
            break;
        }
        if (round < 100) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
    return CUDA_SUCCESS;
}

template <class T>
CUresult write(std::uint64_t address, T value) {
    if (!AddressSpace::instance().covers(address, sizeof(T))) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

CUresult run(const Operation& o, const Context& context) {
    switch (o.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            return wait<std::uint32_t>(o.waitValue.address, o.waitValue.value, o.waitValue.flags, context);
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            return wait<std::uint64_t>(o.waitValue.address, o.waitValue.value64, o.waitValue.flags, context);
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: return write<std::uint32_t>(o.writeValue.address, o.writeValue.value);
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: return write<std::uint64_t>(o.writeValue.address, o.writeValue.value64);
        default: return CUDA_SUCCESS;  // memory is coherent, so there is nothing to flush
    }
}

CUresult submit(CUstream handle, unsigned count, const Operation* operations, unsigned flags) {
    SOFTGPU_STREAM(handle, stream);
    if (const CUresult error = check_operations(count, operations, flags); error != CUDA_SUCCESS) {
        return error;
    }
    std::vector<Operation> batch(operations, operations + count);
    Context* context = &stream->context;
    CUresult result;
    if (captured(
            stream, [&] { return operations_payload(batch, flags, *context); }, result)) {
        return result;
    }
    submit_ordered(stream, [batch = std::move(batch), context] { return run_operations(batch, *context); });
    return CUDA_SUCCESS;
}

CUresult submit_one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value,
                    unsigned flags) {
    Operation operation{};
    operation.operation = type;
    operation.waitValue.address = address;
    operation.waitValue.flags = flags;
    if (is_wide(operation)) {
        operation.waitValue.value64 = value;
    } else {
        operation.waitValue.value = static_cast<cuuint32_t>(value);
    }
    return submit(stream, 1, &operation, 0);
}

}  // namespace

CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags) {
    if (flags != 0 || count > kMaxBatchOperations || (operations == nullptr && count != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        if (const CUresult error = check(operations[i]); error != CUDA_SUCCESS) {
            return error;
        }
    }
    return CUDA_SUCCESS;
}

CUresult run_operations(const std::vector<CUstreamBatchMemOpParams>& operations, Context& context) {
    for (const auto& operation : operations) {
        if (const CUresult error = run(operation, context); error != CUDA_SUCCESS) {
            return error;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}
CUresult CUDAAPI cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}
// It has no engine for decompression.
CUresult CUDAAPI cuMemBatchDecompressAsync(CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream) {
    SOFTGPU_CONTEXT(context);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                                       unsigned flags) {
    return submit(stream, count, operations, flags);
}

// The forms of before CUDA 11.7, which a driver has only if it was loaded with a parameter of its own. The device
// attribute says that they are not there.
CUresult CUDAAPI cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuStreamWaitValue64(CUstream, CUdeviceptr, cuuint64_t, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuStreamWriteValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuStreamWriteValue64(CUstream, CUdeviceptr, cuuint64_t, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuStreamBatchMemOp(CUstream, unsigned count, CUstreamBatchMemOpParams*, unsigned) {
    return count > 256 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
