// Executable graphs: instantiation, launch and changes; memory of graphs.
#include <cstring>

#include "server/softgpu/api/graph_handles.h"
#include "server/softgpu/graph/capture.h"

using namespace gpupool::softgpu;

namespace {

CUresult make_executable(CUgraphExec* result, CUgraph handle, unsigned long long flags,
                         CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    SOFTGPU_READY();
    SOFTGPU_NOT_WHILE_CAPTURING();
    return with_local_room([&](std::shared_ptr<const Plan>& plan) -> CUresult {
        SOFTGPU_GRAPHS();
        SOFTGPU_GRAPH(handle, graph);
        const CUresult made = instantiate(graph, flags, params, result);
        if (made == CUDA_SUCCESS) {
            plan = graphs().executables.find(*result)->plan;
        }
        return made;
    });
}

CUresult make_executable_with_log(CUgraphExec* result, CUgraph graph, CUgraphNode* error_node, char* log,
                                  size_t log_bytes) {
    if (error_node != nullptr) {
        *error_node = nullptr;
    }
    if (log != nullptr && log_bytes != 0) {
        log[0] = '\0';
    }
    return make_executable(result, graph, 0, nullptr);
}

CUresult find_executable(CUgraphExec handle, std::shared_ptr<Executable>& result) {
    SOFTGPU_READY();
    result = graphs().executables.find(handle);
    return result == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult update_executable(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo& info) {
    return with_local_room([&](std::shared_ptr<const Plan>& plan) -> CUresult {
        SOFTGPU_GRAPHS();
        SOFTGPU_EXECUTABLE(handle, executable);
        SOFTGPU_GRAPH(graph_handle, graph);
        info = update(*executable->graph, *graph);
        if (info.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
            return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        }
        executable->renew_plan();
        plan = executable->plan;
        return CUDA_SUCCESS;
    });
}

// Kinds of nodes that can be disabled.
bool can_be_disabled(const Node& node) {
    const CUgraphNodeType type = type_of(*node.payload);
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET;
}

CUresult set_child(CUgraphExec handle, CUgraphNode node_handle, CUgraph child_handle) {
    SOFTGPU_GRAPHS();
    SOFTGPU_EXECUTABLE(handle, executable);
    SOFTGPU_NODE(node_handle, node);
    SOFTGPU_GRAPH(child_handle, graph);
    Node* mine = executable->find(*node);
    const auto* child = mine == nullptr ? nullptr : std::get_if<ChildPayload>(mine->payload.get());
    if (child == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (update(*child->graph, *graph).result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    executable->renew_plan();
    return CUDA_SUCCESS;
}

bool is_high(CUgraphMem_attribute attribute) {
    return attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* result, CUgraph graph, CUgraphNode* error_node, char* log,
                                    size_t log_bytes) {
    return make_executable_with_log(result, graph, error_node, log, log_bytes);
}
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* result, CUgraph graph, CUgraphNode* error_node, char* log,
                                       size_t log_bytes) {
    return make_executable_with_log(result, graph, error_node, log, log_bytes);
}
CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* result, CUgraph graph, unsigned long long flags) {
    // An upload needs a stream, which this form cannot pass.
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return make_executable(result, graph, flags, nullptr);
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* result, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(params);
    params->hErrNode_out = nullptr;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    if ((params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        SOFTGPU_STREAM(params->hUploadStream, stream);
    }
    return make_executable(result, graph, params->flags, params);
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
    SOFTGPU_GRAPHS();
    SOFTGPU_EXECUTABLE(handle, executable);
    SOFTGPU_NOT_NULL(flags);
    *flags = executable->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
    SOFTGPU_READY();
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_GRAPHS();
    // Outstanding launches keep their plan.
    return graphs().executables.remove(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    std::shared_ptr<Executable> executable;
    if (const CUresult error = find_executable(handle, executable); error != CUDA_SUCCESS) {
        return error;
    }
    SOFTGPU_STREAM(stream_handle, stream);
    return refuse_captured(stream);  // a plan needs no upload
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    std::shared_ptr<Executable> executable;
    if (const CUresult error = find_executable(handle, executable); error != CUDA_SUCCESS) {
        return error;
    }
    SOFTGPU_STREAM(stream_handle, stream);
    // A graph launch cannot be captured.
    if (const CUresult refused = refuse_captured(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    return launch(executable, stream);
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* error_node,
                                   CUgraphExecUpdateResult* update_result) {
    if (error_node == nullptr || update_result == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExecUpdateResultInfo info{CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
    const CUresult result = update_executable(executable, graph, info);
    *error_node = info.errorNode;
    *update_result = info.result;
    return result;
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
    SOFTGPU_NOT_NULL(info);
    *info = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
    return update_executable(executable, graph, *info);
}

CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
    return set_child(executable, node, child);
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned enabled) {
    SOFTGPU_GRAPHS();
    SOFTGPU_EXECUTABLE(handle, executable);
    SOFTGPU_NODE(node_handle, node);
    Node* mine = executable->find(*node);
    if (mine == nullptr || !can_be_disabled(*mine)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mine->enabled = enabled != 0;
    executable->renew_plan();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned* enabled) {
    SOFTGPU_GRAPHS();
    SOFTGPU_EXECUTABLE(handle, executable);
    SOFTGPU_NODE(node_handle, node);
    SOFTGPU_NOT_NULL(enabled);
    const Node* mine = executable->find(*node);
    if (mine == nullptr || !can_be_disabled(*mine)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *enabled = mine->enabled ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
    Device* found;
    const CUresult result = find_device(device, found);
    if (result == CUDA_SUCCESS) {
        GraphMemory::trim(*found);
    }
    return result;
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
    Device* found;
    const CUresult result = find_device(device, found);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    SOFTGPU_NOT_NULL(value);
    const bool high = is_high(attribute);
    if (!high && attribute != CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT &&
        attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const GraphMemoryCount& count = found->graph_memory;
    const cuuint64_t bytes = high ? count.high_bytes.load() : count.bytes.load();
    std::memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
    Device* found;
    const CUresult result = find_device(device, found);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    SOFTGPU_NOT_NULL(value);
    cuuint64_t bytes = 0;
    std::memcpy(&bytes, value, sizeof bytes);
    if (bytes != 0 || !is_high(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found->graph_memory.high_bytes.store(found->graph_memory.bytes.load());
    return CUDA_SUCCESS;
}

}  // extern "C"
