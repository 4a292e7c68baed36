// The handlers of served calls, by file, with the view of the session that each takes (views.h). Each has the name of
// its call, and gets the decoded arguments.
//
// Threads: the dispatcher's.
// Errors: the outcome's result, or the answer that the handler gives itself (Outcome::answered()).
#pragma once

#include "protocol/calls/table.h"
#include "protocol/codec/reply.h"
#include "server/worker/dispatch/serving.h"

namespace gpupool::worker::handlers {

// Declares every call, so that the dispatch table compiles for those without a handler. Never called.
#define GP_CALL(op, symbol, ...) Outcome symbol(...);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

#define GP_HANDLER(View, symbol) Outcome symbol(View&, Command&, codec::Slots<calls::symbol>&);

// array.cpp
GP_HANDLER(SessionView, cuArrayCreate_v2)
GP_HANDLER(SessionView, cuArray3DCreate_v2)
GP_HANDLER(SessionView, cuMipmappedArrayCreate)
GP_HANDLER(SessionView, cuMipmappedArrayGetLevel)
GP_HANDLER(SessionView, cuArrayGetPlane)
GP_HANDLER(SessionView, cuMemMapArrayAsync)

// capture.cpp
GP_HANDLER(SessionView, cuStreamBeginCapture_v2)
GP_HANDLER(SessionView, cuStreamBeginCaptureToGraph)
GP_HANDLER(GraphView, gpCaptureEnd)
GP_HANDLER(SessionView, gpCaptureInfo)
GP_HANDLER(SessionView, gpCaptureCopy)
GP_HANDLER(SessionView, gpCaptureHostFunction)

// context.cpp
GP_HANDLER(ContextView, cuDevicePrimaryCtxRetain)
GP_HANDLER(ContextView, gpPrimaryContextEnd)
GP_HANDLER(ContextView, gpContextCreate)
GP_HANDLER(ContextView, gpContextDestroy)
GP_HANDLER(SessionView, gpContextSynchronize)
GP_HANDLER(SessionView, gpContextWait)
GP_HANDLER(SessionView, cuCtxSetLimit)
GP_HANDLER(SessionView, cuCtxEnablePeerAccess)
GP_HANDLER(SessionView, cuCtxDisablePeerAccess)

// copy.cpp
GP_HANDLER(SessionView, gpStreamCatchUp)
GP_HANDLER(CopyView, gpCopyToDevice)
GP_HANDLER(CopyView, gpCopyFromDevice)
GP_HANDLER(CopyView, gpCopyShapedToDevice)
GP_HANDLER(CopyView, gpCopyShapedFromDevice)
GP_HANDLER(SessionView, gpCopyShapedOnDevice)

// copy_batch.cpp
GP_HANDLER(CopyView, cuMemcpyDtoDAsync_v2)
GP_HANDLER(CopyView, gpCopyBatch)
GP_HANDLER(SessionView, gpCopyPeer)

// event.cpp
GP_HANDLER(SessionView, cuEventCreate)
GP_HANDLER(SessionView, cuEventDestroy)
GP_HANDLER(SessionView, cuEventDestroy_v2)
GP_HANDLER(SessionView, cuEventRecord)
GP_HANDLER(SessionView, cuEventRecordWithFlags)
GP_HANDLER(SessionView, cuEventQuery)
GP_HANDLER(SessionView, cuEventSynchronize)
GP_HANDLER(SessionView, gpEventRecord)
GP_HANDLER(SessionView, gpEventWatch)
GP_HANDLER(SessionView, cuEventElapsedTime)
GP_HANDLER(SessionView, cuEventElapsedTime_v2)

// graph.cpp
GP_HANDLER(GraphView, gpGraphAddNode)
GP_HANDLER(GraphView, gpGraphAddOwningNode)
GP_HANDLER(GraphView, gpGraphNodeSetParams)
GP_HANDLER(SessionView, gpGraphNodeGetParams)
GP_HANDLER(GraphView, cuGraphDestroy)
GP_HANDLER(GraphView, cuGraphDestroyNode)
GP_HANDLER(GraphView, cuGraphClone)
GP_HANDLER(SessionView, cuGraphKernelNodeSetAttribute)
GP_HANDLER(GraphView, gpGraphDot)
GP_HANDLER(GraphView, gpGraphDotRead)

// graph_exec.cpp
GP_HANDLER(GraphView, gpGraphNeedsRoom)
GP_HANDLER(GraphExecView, gpGraphReserve)
GP_HANDLER(GraphExecView, gpGraphInstantiate)
GP_HANDLER(GraphExecView, cuGraphExecDestroy)
GP_HANDLER(GraphExecView, gpGraphExecWatch)
GP_HANDLER(GraphExecView, gpGraphExecOnDevice)
GP_HANDLER(GraphExecView, cuGraphLaunch)
GP_HANDLER(GraphExecView, cuGraphUpload)
GP_HANDLER(GraphExecView, cuGraphExecUpdate_v2)
GP_HANDLER(GraphExecView, cuGraphNodeSetEnabled)
GP_HANDLER(GraphExecView, cuGraphNodeGetEnabled)

// graph_query.cpp
GP_HANDLER(GraphView, cuGraphGetNodes)
GP_HANDLER(GraphView, cuGraphGetRootNodes)
GP_HANDLER(GraphView, cuGraphGetEdges_v2)
GP_HANDLER(GraphView, cuGraphNodeGetDependencies_v2)
GP_HANDLER(GraphView, cuGraphNodeGetDependentNodes_v2)

// green_context.cpp
GP_HANDLER(GreenContextView, cuDeviceGetDevResource)
GP_HANDLER(GreenContextView, cuCtxGetDevResource)
GP_HANDLER(GreenContextView, gpSmResourceSplit)
GP_HANDLER(GreenContextView, cuDevResourceGenerateDesc)
GP_HANDLER(GreenContextView, gpGreenContextCreate)
GP_HANDLER(GreenContextView, gpGreenContextDestroy)
GP_HANDLER(GreenContextView, gpContextRecordEvent)
GP_HANDLER(GreenContextView, gpContextWaitEvent)

// host_function.cpp
GP_HANDLER(HostFunctionView, gpHostFunction)
GP_HANDLER(HostFunctionView, gpHostFunctionDone)

// host_memory.cpp
GP_HANDLER(HostMemoryView, gpHostMirror)
GP_HANDLER(HostMemoryView, gpHostShare)
GP_HANDLER(HostMemoryView, gpHostUnmirror)
GP_HANDLER(HostMemoryView, gpHostWrite)

// launch.cpp
GP_HANDLER(LaunchView, gpLaunch)
GP_HANDLER(SessionView, gpOccupancyClusters)

// link.cpp
GP_HANDLER(CodeView, gpLinkCreate)
GP_HANDLER(CodeView, gpLinkAdd)
GP_HANDLER(CodeView, gpLinkComplete)
GP_HANDLER(CodeView, gpLinkRead)
GP_HANDLER(CodeView, gpLinkDestroy)

// memory.cpp
GP_HANDLER(SessionView, gpSlabCreate)
GP_HANDLER(MemoryView, gpSlabPrepare)
GP_HANDLER(SessionView, gpSlabDestroy)
GP_HANDLER(MemoryView, cuMemGetInfo_v2)
GP_HANDLER(SessionView, cuDeviceGraphMemTrim)
GP_HANDLER(SessionView, cuMemPoolCreate)
GP_HANDLER(SessionView, cuMemPoolTrimTo)
GP_HANDLER(SessionView, cuMemPoolSetAccess)
GP_HANDLER(SessionView, cuMemCreate)
GP_HANDLER(SessionView, gpMemReopen)
GP_HANDLER(SessionView, cuMemRelease)
GP_HANDLER(SessionView, cuMemMap)
GP_HANDLER(SessionView, cuMemUnmap)
GP_HANDLER(SessionView, cuMemRetainAllocationHandle)
GP_HANDLER(SessionView, cuMemAllocAsync)
GP_HANDLER(SessionView, cuMemAllocFromPoolAsync)
GP_HANDLER(SessionView, cuMemFreeAsync)
GP_HANDLER(SessionView, cuMemFree_v2)

// module.cpp
GP_HANDLER(CodeView, gpImageOffer)
GP_HANDLER(CodeView, gpImageData)
GP_HANDLER(CodeView, gpLibraryLoad)
GP_HANDLER(CodeView, gpModuleLoad)
GP_HANDLER(CodeView, gpFunctionResolve)
GP_HANDLER(CodeView, gpKernelResolve)
GP_HANDLER(SessionView, gpKernelFunction)
GP_HANDLER(CodeView, gpFunctionAttributes)
GP_HANDLER(CodeView, gpFunctionSetAttribute)
GP_HANDLER(SessionView, gpLibraryModule)
GP_HANDLER(SessionView, cuModuleGetTexRef)
GP_HANDLER(SessionView, cuModuleGetSurfRef)
GP_HANDLER(SessionView, gpLibraryNames)
GP_HANDLER(SessionView, gpModuleNames)

// stream.cpp
GP_HANDLER(StreamView, gpStreamReserve)
GP_HANDLER(StreamView, cuStreamCreate)
GP_HANDLER(StreamView, cuStreamCreateWithPriority)
GP_HANDLER(StreamView, gpGreenStreamCreate)
GP_HANDLER(SessionView, cuStreamDestroy)
GP_HANDLER(SessionView, cuStreamDestroy_v2)
GP_HANDLER(SessionView, cuStreamQuery)
GP_HANDLER(StreamView, gpStreamWatch)
GP_HANDLER(SessionView, cuStreamSynchronize)
GP_HANDLER(SessionView, cuStreamWaitEvent)

// trace.cpp
GP_HANDLER(SessionView, gpTraceStart)
GP_HANDLER(SessionView, gpTraceClock)
GP_HANDLER(SessionView, gpTraceFlush)

#undef GP_HANDLER

}  // namespace gpupool::worker::handlers
