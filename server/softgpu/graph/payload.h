// What nodes do: made from the driver's parameters, and run.
//
// Threads: any. Errors: CUresult; a payload is made only from parameters that were found good.
#pragma once

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

constexpr unsigned kMaxBatchOperations = 256;

CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, PayloadPtr& payload);
CUresult make_copy(const CUDA_MEMCPY3D* params, CUcontext context, PayloadPtr& payload);
CUresult make_fill(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context, PayloadPtr& payload);
CUresult make_host(const CUDA_HOST_NODE_PARAMS* params, PayloadPtr& payload);
CUresult make_event(CUevent handle, bool record, PayloadPtr& payload);
// Gives the graph's memory its address, in `params`.
CUresult make_allocation(CUDA_MEM_ALLOC_NODE_PARAMS* params, PayloadPtr& payload);
CUresult make_free(CUdeviceptr pointer, PayloadPtr& payload);
CUresult make_operations(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, PayloadPtr& payload);
// A clone of the graph, or the graph itself, as a child. The caller holds graph_mutex().
CUresult make_child(CUgraph handle, const Graph& parent, CUgraphChildGraphNodeOwnership ownership, PayloadPtr& payload);
// From what cuGraphAddNode and its kin get; an allocation's address goes back into it.
CUresult make_any(CUgraphNodeParams* params, const Graph& parent, PayloadPtr& payload);

PayloadPtr kernel_with(const KernelPayload& kernel, int attribute, const CUlaunchAttributeValue& value);
bool known_kernel_attribute(int attribute);

// Runs anything but a child graph, to its end, on the calling thread; `moment` is what a record node reaches.
CUresult run_payload(const Payload& payload, Context& context, const std::shared_ptr<Moment>& moment);

}  // namespace gpupool::softgpu
