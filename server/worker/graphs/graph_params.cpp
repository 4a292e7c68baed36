#include "server/worker/graphs/graph_params.h"

#include <algorithm>
#include <cstring>

#include "protocol/codec/struct_traits.h"
#include "server/worker/scheduling/kernel_launch.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {
namespace {

// Null stays null.
template <class Handle>
bool translate(const HandleTable& handles, Handle& handle) {
    const HandleTable::Lookup found = handles.find(handle);
    handle = codec::from_wire<Handle>(found.driver);
    return found.found == HandleTable::Found::yes;
}

bool is_host_side_named(const CUDA_MEMCPY3D& copy) {
    const auto named = [](CUmemorytype type, const void* address) {
        return codec::number_of(type) != CU_MEMORYTYPE_HOST ||
               is_host_memory_name(reinterpret_cast<std::uint64_t>(address));
    };
    return codec::number_of(copy.srcMemoryType) != CU_MEMORYTYPE_UNIFIED &&
           codec::number_of(copy.dstMemoryType) != CU_MEMORYTYPE_UNIFIED && named(copy.srcMemoryType, copy.srcHost) &&
           named(copy.dstMemoryType, copy.dstHost);
}

template <class T>
bool read_array(const GraphNode& node, std::span<const unsigned char> payload, std::vector<T>& out) {
    if (payload.size() != node.count * sizeof(T)) {
        return false;
    }
    out.resize(node.count);
    if (node.count != 0) {
        std::memcpy(static_cast<void*>(out.data()), payload.data(), payload.size());
    }
    return true;
}

template <class T>
void write_array(const T* elements, std::size_t count, std::vector<unsigned char>& payload,
                 std::size_t& payload_bytes) {
    payload_bytes = count * sizeof(T);
    if (count != 0) {
        std::memcpy(payload.data(), elements, std::min(payload_bytes, payload.size()));
    }
}

// Reads the arguments from one buffer, passed in the form of CU_LAUNCH_PARAM_*.
CUresult read_packed_arguments(void* const* extra, std::vector<unsigned char>& payload, std::size_t& payload_bytes) {
    const void* buffer = nullptr;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[1];
        } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            payload_bytes = *static_cast<const std::size_t*>(extra[1]);
        }
    }
    if (buffer == nullptr) {
        payload_bytes = 0;
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    std::memcpy(payload.data(), buffer, std::min(payload_bytes, payload.size()));
    return CUDA_SUCCESS;
}

// The client's handle for the node's function. A node that was captured before its kernel was loaded refers to the
// kernel, or to a function for which the client has no handle.
CUfunction client_function(const driver::Api& api, HandleTable& handles, const CUDA_KERNEL_NODE_PARAMS& p) {
    if (CUfunction const known = handles.known_handle(p.func); known != nullptr) {
        return known;
    }
    CUkernel kernel = p.kern != nullptr ? handles.known_handle(p.kern) : nullptr;
    if (kernel == nullptr) {
        kernel = handles.find_client<CUkernel>([&](CUkernel one) {
            CUfunction function = nullptr;
            return driver::call(api.cuKernelGetFunction, &function, one) == CUDA_SUCCESS && function == p.func;
        });
    }
    return reinterpret_cast<CUfunction>(kernel);
}

CUresult describe_kernel(const driver::Api& api, HandleTable& handles, CUgraphNode node, GraphNode& out,
                         std::vector<unsigned char>& payload, std::size_t& payload_bytes) {
    CUDA_KERNEL_NODE_PARAMS p{};
    const CUresult result = driver::call(api.cuGraphKernelNodeGetParams_v2, node, &p);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    out.function = client_function(api, handles, p);
    out.context = handles.known_handle(p.ctx);
    out.grid_x = p.gridDimX;
    out.grid_y = p.gridDimY;
    out.grid_z = p.gridDimZ;
    out.block_x = p.blockDimX;
    out.block_y = p.blockDimY;
    out.block_z = p.blockDimZ;
    out.shared_bytes = p.sharedMemBytes;
    if (p.extra != nullptr) {  // in the form in which the worker passed them
        return read_packed_arguments(p.extra, payload, payload_bytes);
    }
    if (p.kernelParams == nullptr) {
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0;; ++i) {
        std::size_t offset = 0, size = 0;
        const CUresult known = p.func != nullptr ? driver::call(api.cuFuncGetParamInfo, p.func, i, &offset, &size)
                                                 : driver::call(api.cuKernelGetParamInfo, p.kern, i, &offset, &size);
        if (known != CUDA_SUCCESS) {
            return CUDA_SUCCESS;
        }
        if (offset + size <= payload.size()) {
            std::memcpy(payload.data() + offset, p.kernelParams[i], size);
        }
        payload_bytes = std::max(payload_bytes, offset + size);
    }
}

}  // namespace

void placeholder_function(void*) {}

CUresult NodeParameters::read_operations(const GraphNode& node, std::span<const unsigned char> payload) {
    if (!read_array(node, payload, operations_)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    driver.memOp.count = node.count;
    driver.memOp.paramArray = operations_.data();
    driver.memOp.flags = node.flags;
    return CUDA_SUCCESS;
}

CUresult NodeParameters::read(const HandleTable& handles, Objects& objects, const GraphNode& node,
                              std::span<unsigned char> payload) {
    std::memset(static_cast<void*>(&driver), 0, sizeof driver);
    driver.type = static_cast<CUgraphNodeType>(node.type);
    CUcontext context = node.context;
    if (!translate(handles, context)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    switch (node.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            auto& p = driver.kernel;
            p.func = node.function;
            by_kernel_ = codec::kind_of(codec::to_wire(node.function)) == codec::HandleKind::kernel;
            if (node.function == nullptr || !translate(handles, p.func)) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            p.gridDimX = node.grid_x;
            p.gridDimY = node.grid_y;
            p.gridDimZ = node.grid_z;
            p.blockDimX = node.block_x;
            p.blockDimY = node.block_y;
            p.blockDimZ = node.block_z;
            p.sharedMemBytes = node.shared_bytes;
            p.ctx = context;
            argument_bytes_ = payload.size();
            if (argument_bytes_ != 0) {
                extra_[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
                extra_[1] = payload.data();
                extra_[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
                extra_[3] = &argument_bytes_;
                extra_[4] = CU_LAUNCH_PARAM_END;
                p.extra = extra_;
            }
            return CUDA_SUCCESS;
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY: {
            driver.memcpy.copyCtx = context;
            driver.memcpy.copyParams = node.copy;
            bool known = true;
            codec::StructTraits<CUDA_MEMCPY3D>::visit(
                driver.memcpy.copyParams, [&](CUarray& array) { known = known && translate(handles, array); });
            if (!known) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            return is_host_side_named(node.copy) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        }
        case CU_GRAPH_NODE_TYPE_MEMSET:
            driver.memset = {node.address, node.pitch_bytes, node.value, node.element_bytes,
                             node.width,   node.height,      context};
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_HOST:
            driver.host = {placeholder_function, codec::from_wire<void*>(node.host_function)};
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_GRAPH:
            driver.graph.graph = node.graph;
            driver.graph.ownership = static_cast<CUgraphChildGraphNodeOwnership>(node.flags);
            return translate(handles, driver.graph.graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
            EventState* const event = objects.event(node.event);
            if (event == nullptr) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            event->in_graph = true;
            driver.eventRecord.event = event->driver;  // eventWait has the same layout
            return CUDA_SUCCESS;
        }
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            if (!read_array(node, payload, access_)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            driver.alloc.poolProps = node.pool;
            driver.alloc.poolProps.win32SecurityAttributes = nullptr;
            driver.alloc.bytesize = node.bytes;
            driver.alloc.accessDescs = access_.empty() ? nullptr : access_.data();
            driver.alloc.accessDescCount = access_.size();
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_MEM_FREE: driver.free.dptr = node.address; return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: driver.memOp.ctx = context; return read_operations(node, payload);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            driver.conditional.handle = node.condition;
            driver.conditional.type = static_cast<CUgraphConditionalNodeType>(node.condition_type);
            driver.conditional.size = node.count;
            driver.conditional.ctx = context;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

void NodeParameters::unpack_arguments(const driver::Api& api) {
    if (driver.type != CU_GRAPH_NODE_TYPE_KERNEL || driver.kernel.extra == nullptr) {
        return;
    }
    const std::span<unsigned char> packed(static_cast<unsigned char*>(extra_[1]), argument_bytes_);
    if (find_arguments(api, driver.kernel.func, by_kernel_, packed, arguments_)) {
        driver.kernel.kernelParams = arguments_.data();
        driver.kernel.extra = nullptr;
    }
}

CUresult describe(const driver::Api& api, HandleTable& handles, CUgraphNode node, GraphNode& out,
                  std::vector<unsigned char>& payload, std::size_t& payload_bytes) {
    CUgraphNodeType type{};
    CUresult result = driver::call(api.cuGraphNodeGetType, node, &type);
    out.type = static_cast<std::int32_t>(type);
    payload_bytes = 0;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return describe_kernel(api, handles, node, out, payload, payload_bytes);
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            result = driver::call(api.cuGraphMemcpyNodeGetParams, node, &out.copy);
            codec::StructTraits<CUDA_MEMCPY3D>::visit(out.copy,
                                                      [&](CUarray& array) { array = handles.client_handle(array); });
            return result;
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            CUDA_MEMSET_NODE_PARAMS p{};
            result = driver::call(api.cuGraphMemsetNodeGetParams, node, &p);
            out.address = p.dst;
            out.pitch_bytes = p.pitch;
            out.value = p.value;
            out.element_bytes = p.elementSize;
            out.width = p.width;
            out.height = p.height;
            return result;
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            CUDA_HOST_NODE_PARAMS p{};
            result = driver::call(api.cuGraphHostNodeGetParams, node, &p);
            out.host_function = codec::to_wire(p.userData);
            return result;
        }
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            result = driver::call(api.cuGraphEventWaitNodeGetEvent, node, &out.event);
            out.event = handles.client_handle(out.event);
            return result;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            result = driver::call(api.cuGraphEventRecordNodeGetEvent, node, &out.event);
            out.event = handles.client_handle(out.event);
            return result;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            CUDA_MEM_ALLOC_NODE_PARAMS p{};
            result = driver::call(api.cuGraphMemAllocNodeGetParams, node, &p);
            out.pool = p.poolProps;
            out.bytes = p.bytesize;
            out.address = p.dptr;
            out.count = static_cast<std::uint32_t>(p.accessDescCount);
            write_array(p.accessDescs, result == CUDA_SUCCESS ? p.accessDescCount : 0, payload, payload_bytes);
            return result;
        }
        case CU_GRAPH_NODE_TYPE_MEM_FREE: {
            CUdeviceptr address = 0;
            result = driver::call(api.cuGraphMemFreeNodeGetParams, node, &address);
            out.address = address;
            return result;
        }
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
            CUDA_BATCH_MEM_OP_NODE_PARAMS p{};
            result = driver::call(api.cuGraphBatchMemOpNodeGetParams, node, &p);
            out.context = handles.client_handle(p.ctx);
            out.count = p.count;
            out.flags = p.flags;
            write_array(p.paramArray, result == CUDA_SUCCESS ? p.count : 0, payload, payload_bytes);
            return result;
        }
        // The client asks for nothing but their type.
        case CU_GRAPH_NODE_TYPE_GRAPH:
        case CU_GRAPH_NODE_TYPE_EMPTY:
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace gpupool::worker
