// Payloads of nodes: made from the driver's parameters, and run.
//
// Threads: any. Errors: CUresult; a payload is only made from valid parameters.
#pragma once

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

constexpr unsigned kMaxBatchOperations = 256;

CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, PayloadPtr& payload);
CUresult make_copy(const CUDA_MEMCPY3D* params, CUcontext context, PayloadPtr& payload);
CUresult make_fill(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context, PayloadPtr& payload);
CUresult make_host(const CUDA_HOST_NODE_PARAMS* params, PayloadPtr& payload);
CUresult make_event(CUevent handle, bool record, PayloadPtr& payload);
// Writes the address of the graph's memory into `params`.
CUresult make_allocation(CUDA_MEM_ALLOC_NODE_PARAMS* params, PayloadPtr& payload);
// `parent`: the graph, which may not free it twice; null if a stream captures.
CUresult make_free(CUdeviceptr pointer, const Graph* parent, PayloadPtr& payload);
CUresult make_operations(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, PayloadPtr& payload);
// Makes a child graph's payload, from a clone of the graph or the graph itself.
CUresult make_child(CUgraph handle, const Graph& parent, CUgraphChildGraphNodeOwnership ownership, PayloadPtr& payload)
    GP_REQUIRES(graph_mutex());
// Makes any payload, from the parameters of cuGraphAddNode and similar calls. Writes an allocation's address into them.
CUresult make_any(CUgraphNodeParams* params, const Graph& parent, PayloadPtr& payload) GP_REQUIRES(graph_mutex());

PayloadPtr kernel_with(const KernelPayload& kernel, int attribute, const CUlaunchAttributeValue& value);
bool known_kernel_attribute(int attribute);

// Runs any payload except a child graph to its end on the calling thread. A record node reaches `moment`.
CUresult run_payload(const Payload& payload, Context& context, const std::shared_ptr<Moment>& moment);

}  // namespace gpupool::softgpu
