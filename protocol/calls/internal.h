// gpupool's own calls, which client and worker exchange besides the driver's calls.
//
// They are declared like driver calls, so that the same table describes them and the same codec carries them. No
// function of these names exists: the client sends them with `client::remote<calls::gpXxx>(...)`, and the worker's
// handlers in `server/worker/handlers/` execute them.
#pragma once

#include <climits>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/graph_node.h"
#include "protocol/calls/members.h"

namespace gpupool {

// Identifies a code image by its content: its SHA-256.
struct ImageHash {
    std::uint64_t words[4];
    friend auto operator<=>(const ImageHash&, const ImageHash&) = default;
};
GP_MEMBERS(ImageHash, words);

// Position of one kernel parameter in the launch's parameter block.
struct ParameterLayout {
    std::uint32_t offset_bytes, size_bytes;
};
GP_MEMBERS(ParameterLayout, offset_bytes, size_bytes);

// Stands for a parameter count that is unknown: the driver reports it only for a loaded kernel.
inline constexpr unsigned kUnknownLayout = ~0u;

// Whether gpKernelResolve also loads the kernel. Natively the look-up of a kernel does not block, but loading a
// library's first kernel into a context waits for the GPU.
enum class KernelLoad : unsigned {
    never,
    on_idle_gpu,
    always,  // other kernels of the library are already loaded in the current context
};

inline constexpr int kUnknownAttribute = INT_MIN;

// A launch without its attributes and arguments. `function` is a handle of a function or of a kernel.
struct LaunchShape {
    CUfunction function;
    std::uint32_t grid_x, grid_y, grid_z;
    std::uint32_t block_x, block_y, block_z;
    std::uint32_t shared_bytes;
    std::uint32_t cooperative;  // cuLaunchCooperativeKernel
    std::uint32_t extended;     // cuLaunchKernelEx: the call has attributes
    std::uint32_t reserved;
};
GP_MEMBERS(LaunchShape, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, cooperative,
           extended, reserved);

// A copy of one row within the GPU's memory.
struct CopyRange {
    CUdeviceptr destination, source;
    std::uint64_t bytes;
};
GP_MEMBERS(CopyRange, destination, source, bytes);

// A CUDA_MEMCPY3D whose host side is the data of the transfer: rows of `WidthInBytes`, packed without gaps.
using CopyShape = CUDA_MEMCPY3D;

}  // namespace gpupool

// Maps new exportable device memory of `bytes` at `address`, inside the session's window. Returns
// CUDA_ERROR_OUT_OF_MEMORY if the device has no memory left or the quota is exceeded.
CUresult gpSlabCreate(CUdevice device, CUdeviceptr address, std::size_t bytes);
// As gpSlabCreate, but ahead of need: no call waits for it, and its failure makes no call fail.
// NoticeType::slab_prepared reports the result.
CUresult gpSlabPrepare(CUdevice device, CUdeviceptr address, std::size_t bytes);
// Unmaps and releases the slab, once the work issued before has completed.
CUresult gpSlabDestroy(CUdeviceptr address, std::size_t bytes);

// Code images. A call that needs an image names it by its hash. If the server has the image, from this session or from
// an earlier one of the same tenant, nothing else is sent. Otherwise the call only sets `wanted` to 1; the client then
// offers the image (gpImageOffer), sends it in order in gpImageData calls up to the last of `bytes`, and repeats the
// call, without waiting in between.
CUresult gpImageOffer(const gpupool::ImageHash* hash, std::uint64_t bytes);
// `unpacked_bytes`: size after decompression (common/compression.h); 0 if `data` is not compressed.
CUresult gpImageData(const gpupool::ImageHash* hash, std::uint64_t offset, std::uint64_t unpacked_bytes,
                     const unsigned char* data, std::size_t data_bytes);

// Options are CUjit_option with 64-bit values. The log is the driver's JIT log, info before error, each NUL-terminated.
CUresult gpLibraryLoad(CUlibrary* library, const gpupool::ImageHash* hash, unsigned* wanted, const int* options,
                       const std::uint64_t* option_values, unsigned option_count, char* log, std::size_t log_bytes);
CUresult gpModuleLoad(CUmodule* module, const gpupool::ImageHash* hash, unsigned* wanted, const int* options,
                      const std::uint64_t* option_values, unsigned option_count, char* log, std::size_t log_bytes);

// The JIT linker. Inputs are images; the result is read in parts. Each call returns the logs so far.
CUresult gpLinkCreate(CUlinkState* state, const int* options, const std::uint64_t* option_values, unsigned option_count,
                      std::size_t log_bytes);
CUresult gpLinkAdd(CUlinkState state, CUjitInputType type, const gpupool::ImageHash* hash, unsigned* wanted,
                   std::size_t bytes, const char* name, const int* options, const std::uint64_t* option_values,
                   unsigned option_count, char* log, std::size_t log_bytes);
CUresult gpLinkComplete(CUlinkState state, std::size_t* bytes, char* log, std::size_t log_bytes);
CUresult gpLinkRead(CUlinkState state, std::size_t offset, unsigned char* data, std::size_t data_bytes);
CUresult gpLinkDestroy(CUlinkState state);

// Looks a function up by name, loads it, and returns what a launch needs to know about it, because a launch usually
// follows. `count` is the number of parameters; `layout` receives the first `capacity` of them. The attributes are
// those of gpFunctionAttributes; all are kUnknownAttribute if the driver did not return them.
CUresult gpFunctionResolve(CUfunction* function, CUmodule module, const char* name, gpupool::ParameterLayout* layout,
                           unsigned capacity, unsigned* count, int* attributes, unsigned attribute_count);
// The same for a kernel's function in the current context.
CUresult gpKernelFunction(CUfunction* function, CUkernel kernel, gpupool::ParameterLayout* layout, unsigned capacity,
                          unsigned* count, int* attributes, unsigned attribute_count);
// Looks a kernel up by name and, if `load` permits, does the work of gpKernelFunction (then `loaded` is 1). Otherwise
// `count` is kUnknownLayout.
CUresult gpKernelResolve(CUkernel* kernel, CUlibrary library, const char* name, gpupool::KernelLoad load,
                         gpupool::ParameterLayout* layout, unsigned capacity, unsigned* count, CUfunction* function,
                         unsigned* loaded, int* attributes, unsigned attribute_count);
CUresult gpLibraryModule(CUmodule* module, CUlibrary library);
// The names of all kernels, NUL-terminated, one after the other.
CUresult gpLibraryNames(CUlibrary library, char* names, std::size_t names_bytes, std::size_t* needed_bytes);
CUresult gpModuleNames(CUmodule module, char* names, std::size_t names_bytes, std::size_t* needed_bytes);

CUresult gpLaunch(const gpupool::LaunchShape* launch, const CUlaunchAttribute* attributes, unsigned attribute_count,
                  const unsigned char* arguments, std::size_t argument_bytes, CUstream stream);

// cuOccupancyMaxPotentialClusterSize (potential 1) and cuOccupancyMaxActiveClusters (0).
CUresult gpOccupancyClusters(int* result, unsigned potential, const gpupool::LaunchShape* launch,
                             const CUlaunchAttribute* attributes, unsigned attribute_count);

// Copies between host and device. Small data is part of the call. Larger data (`data_bytes` 0, `transfer` not 0) is
// pulled by the worker chunk by chunk when the copy is ready in its stream (NoticeType::pull). The first `ahead_bytes`
// of a transfer whose number has kTransferSentAhead are sent over lanes without being pulled, in pieces of
// kAheadPieceBytes; they may arrive before or after this call.
CUresult gpCopyToDevice(CUdeviceptr destination, std::size_t bytes, std::uint64_t transfer, std::uint64_t ahead_bytes,
                        const unsigned char* data, std::size_t data_bytes, CUstream stream);
// Later operations of the stream are issued, and the data of later copies is pulled, only after the GPU has completed
// everything before this call.
CUresult gpStreamCatchUp(CUstream stream);
// The data is sent back as bulk frames of `transfer`, before any reply to a call that waits for the stream.
CUresult gpCopyFromDevice(CUdeviceptr source, std::size_t bytes, std::uint64_t transfer, CUstream stream);
CUresult gpCopyShapedToDevice(const gpupool::CopyShape* shape, std::uint64_t transfer, const unsigned char* data,
                              std::size_t data_bytes, CUstream stream);
CUresult gpCopyShapedFromDevice(const gpupool::CopyShape* shape, std::uint64_t transfer, CUstream stream);
CUresult gpCopyShapedOnDevice(const gpupool::CopyShape* shape, CUstream stream);

// Copies that have no order among themselves; at most codec::kMaxBatchedCopies.
CUresult gpCopyBatch(const gpupool::CopyRange* copies, std::size_t count, CUstream stream);
// A copy between the memory of two contexts. `shape` has no end in host memory.
CUresult gpCopyPeer(const gpupool::CopyShape* shape, CUcontext dstContext, CUcontext srcContext, CUstream stream);

CUresult gpContextSynchronize(CUcontext context);
// As gpContextSynchronize, but leaves the latched failures of deferred calls for the next call that synchronizes with
// the context. Returns CUDA_ERROR_NOT_READY if there is such an unreported failure, although the context's work is
// complete.
CUresult gpContextWait(CUcontext context);

// cuDevSmResourceSplitByCount. `groups` may be null; else there is room for `capacity` groups, of which `count` are
// made.
CUresult gpSmResourceSplit(CUdevResource* groups, unsigned capacity, unsigned* count, const CUdevResource* given,
                           CUdevResource* remaining, unsigned flags, unsigned least);
// `context` stands for the green context, and for its CUcontext.
CUresult gpGreenContextCreate(CUcontext* context, CUdevResourceDesc descriptor, CUdevice device, unsigned flags);
// Returns when all work of the context's streams is complete.
CUresult gpGreenContextDestroy(CUcontext context);
CUresult gpGreenStreamCreate(CUstream* stream, CUcontext context, int priority);
// For contexts of both kinds: cuCtxRecordEvent and cuCtxWaitEvent, cuGreenCtxRecordEvent and cuGreenCtxWaitEvent.
CUresult gpContextRecordEvent(CUcontext context, CUevent event);
CUresult gpContextWaitEvent(CUcontext context, CUevent event);

// The stream waits until the application's function `ticket` has run in the client.
CUresult gpHostFunction(std::uint64_t ticket, CUstream stream);
// Reports that the application's function, which NoticeType::host_function requested, has returned.
CUresult gpHostFunctionDone(std::uint64_t ticket);

// ---- attributes of functions. `function` is a handle of a function, or of a kernel, whose attributes are per device.

// All attributes in the order of CUfunction_attribute; kUnknownAttribute for those that the driver does not know.
CUresult gpFunctionAttributes(CUfunction function, CUdevice device, int* values, unsigned capacity, unsigned* count);
// Sets one attribute, which the client has checked.
CUresult gpFunctionSetAttribute(CUfunction function, CUdevice device, int attribute, int value);

// Requests a NoticeType::event_complete when the event's present record, which the client numbers `record`, is
// complete.
CUresult gpEventWatch(CUevent event, std::uint64_t record);
// cuEventRecord and gpEventWatch in one, for an event that the program has queried before.
CUresult gpEventRecord(CUevent hEvent, CUstream hStream, std::uint64_t record);
// Requests a NoticeType::stream_complete when all work given to the stream so far is complete. At most one request per
// stream is outstanding: another is ignored until the notice for the first has been sent.
CUresult gpStreamWatch(CUstream stream);

// Exports memory of cuMemCreate and imports it again, as a program does that passes a descriptor on within its process.
CUresult gpMemReopen(CUmemGenericAllocationHandle given, CUmemGenericAllocationHandle* handle);

// ---- mapped host memory

// Creates a mirror: memory of the worker at the same address, zero-filled and registered with the driver in `context`.
CUresult gpHostMirror(CUcontext context, CUdeviceptr address, std::uint64_t bytes);
CUresult gpHostUnmirror(CUdeviceptr address);
// Uses the client's own memory instead of a mirror: the descriptor that the client passed with `address` as its number.
// Ended by gpHostUnmirror, as a mirror.
CUresult gpHostShare(CUcontext context, CUdeviceptr address, std::uint64_t bytes);
// Changes that the program made: a record of protocol/codec/memory_changes.h.
CUresult gpHostWrite(const unsigned char* data, std::size_t data_bytes);

// ---- the trace (protocol/codec/trace_records.h)

// From this call on until the session ends, the worker reports its work (NoticeType::trace_records).
CUresult gpTraceStart();
// The current time of the clock that the worker's records use.
CUresult gpTraceClock(std::uint64_t* now_ns);
// Answered when everything recorded so far has been sent. Omits GPU work that does not complete soon.
CUresult gpTraceFlush();

// ---- graphs

// Adds a node of any type that does not own memory or graphs (is_owning_node).
CUresult gpGraphAddNode(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies,
                        const CUgraphEdgeData* edges, std::size_t dependency_count, std::size_t edge_count,
                        const gpupool::GraphNode* node, const unsigned char* payload, std::size_t payload_bytes);
// Adds a node that owns something, and returns it: the `address` of the memory that it allocates, or the `graphs` of a
// conditional node.
CUresult gpGraphAddOwningNode(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies,
                              const CUgraphEdgeData* edges, std::size_t dependency_count, std::size_t edge_count,
                              const gpupool::GraphNode* node, const unsigned char* payload, std::size_t payload_bytes,
                              CUdeviceptr* address, CUgraph* graphs, std::size_t graph_count);
// Changes the parameters of a node of a graph or, if `executable` is not null, of that node in the executable graph.
CUresult gpGraphNodeSetParams(CUgraphExec executable, CUgraphNode changed, const gpupool::GraphNode* node,
                              const unsigned char* payload, std::size_t payload_bytes);
// `payload_bytes` is the full size of the node's payload; as much of it as fits is written to `payload`.
CUresult gpGraphNodeGetParams(CUgraphNode asked, gpupool::GraphNode* node, unsigned char* payload, std::size_t capacity,
                              std::size_t* payload_bytes);
CUresult gpGraphInstantiate(CUgraphExec* executable, CUgraph graph, std::uint64_t flags, CUgraphNode* error_node,
                            int* outcome);
// Counts the launches of an executable from here on (`ticket` 0), or requests a NoticeType::host_function for `ticket`
// when the executable is destroyed and the launches counted are complete.
CUresult gpGraphExecWatch(CUgraphExec executable, std::uint64_t ticket);
// Renames an executable for launches from the device: kernels know it by the driver's `handle`, and so does the program
// from here on.
CUresult gpGraphExecOnDevice(CUgraphExec executable, std::uint64_t* handle);
// Charges one stream more in the context, so that a program which has too many gets the error when it creates one.
CUresult gpStreamReserve(CUcontext context);
// May launches of the executable take memory?
CUresult gpGraphNeedsRoom(CUgraphExec executable, int* needed);
// Charges what the next launch in `stream` may take, so that a program whose graph does not fit gets the error from the
// launch itself. `needed`: as above.
CUresult gpGraphReserve(CUgraphExec executable, CUstream stream, int* needed);
// The graph in the DOT language; the text is read in parts.
CUresult gpGraphDot(CUgraph graph, unsigned flags, std::size_t* bytes);
CUresult gpGraphDotRead(std::size_t offset, unsigned char* data, std::size_t data_bytes);

// Ends a capture. `discard`: the client has found the capture invalid, so no graph is created.
CUresult gpCaptureEnd(CUstream stream, unsigned discard, CUgraph* graph);
CUresult gpCaptureInfo(CUstream stream, CUgraph* graph, CUgraphNode* dependencies, CUgraphEdgeData* edges,
                       std::size_t capacity, std::size_t* count);
// Captures a copy to or from the client's memory. `plain`: contiguous memory, as for cuMemcpyAsync.
CUresult gpCaptureCopy(const gpupool::CopyShape* shape, unsigned plain, CUstream stream);
CUresult gpCaptureHostFunction(std::uint64_t function, CUstream stream);

CUresult gpContextCreate(CUcontext* context, unsigned flags, CUdevice device, const CUexecAffinityParam* affinities,
                         unsigned affinity_count);
CUresult gpContextDestroy(CUcontext context);
// The last reference to a primary context was released, or the context was reset.
CUresult gpPrimaryContextEnd(CUcontext context, CUdevice device, unsigned reset);
