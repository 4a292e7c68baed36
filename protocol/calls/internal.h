// gpupool's own calls: what client and worker say to each other besides the driver's calls.
//
// They are declared like driver calls so that the same table describes them and the same codec carries them. No
// function of these names exists: the client sends them with `client::remote<calls::gpXxx>(...)`, the worker serves
// them in `server/worker/handlers/`.
#pragma once

#include <climits>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/graph_node.h"

namespace gpupool {

// Names a code image by its content: its SHA-256.
struct ImageHash {
    std::uint64_t words[4];
    friend auto operator<=>(const ImageHash&, const ImageHash&) = default;
};

// Where one kernel parameter lies in the launch's parameter block.
struct ParameterLayout {
    std::uint32_t offset_bytes, size_bytes;
};

// In place of a parameter count: the driver says it of a loaded kernel only.
inline constexpr unsigned kUnknownLayout = ~0u;

// Which kernels to load as soon as they are looked up: natively nobody waits then, and to load a library's first one in
// a context waits for the GPU.
enum class KernelLoad : unsigned {
    never,
    on_idle_gpu,
    always,  // others of the library are loaded in the current context
};

inline constexpr int kUnknownAttribute = INT_MIN;

// A launch, less its attributes and arguments. `function` is a handle of a function or of a kernel.
struct LaunchShape {
    CUfunction function;
    std::uint32_t grid_x, grid_y, grid_z;
    std::uint32_t block_x, block_y, block_z;
    std::uint32_t shared_bytes;
    std::uint32_t cooperative;  // cuLaunchCooperativeKernel
    std::uint32_t extended;     // cuLaunchKernelEx: the attributes count
};

// A CUDA_MEMCPY3D whose host side is the transfer's data: rows of `WidthInBytes`, packed without gaps.
using CopyShape = CUDA_MEMCPY3D;

}  // namespace gpupool

// Maps fresh exportable device memory of `bytes` at `address`, inside the session's window. Out of memory and over
// quota are CUDA_ERROR_OUT_OF_MEMORY.
CUresult gpSlabCreate(CUdevice device, CUdeviceptr address, std::size_t bytes);
// The same, of memory that is not needed yet: nobody waits for it, and it fails for nobody. What came of it is said by
// NoticeType::slab_prepared.
CUresult gpSlabPrepare(CUdevice device, CUdeviceptr address, std::size_t bytes);
// Unmaps and releases it, once the work issued before has completed.
CUresult gpSlabDestroy(CUdeviceptr address, std::size_t bytes);

// Code images. A call that needs one names it. Where the server has it, from this session or from an earlier one of the
// same tenant, that is all. Where it has not, the call does nothing but say so (`wanted` is 1): the client offers the
// image, sends it in gpImageData, in order, up to the last of `bytes`, and makes the call again, without a wait
// between.
CUresult gpImageOffer(const gpupool::ImageHash* hash, std::uint64_t bytes);
// `unpacked_bytes`: what the data becomes (common/compression.h), 0: it is as it is.
CUresult gpImageData(const gpupool::ImageHash* hash, std::uint64_t offset, std::uint64_t unpacked_bytes,
                     const unsigned char* data, std::size_t data_bytes);

// Options are CUjit_option with 64-bit values; the log is the driver's JIT log, info then error, each NUL-terminated.
CUresult gpLibraryLoad(CUlibrary* library, const gpupool::ImageHash* hash, unsigned* wanted, const int* options,
                       const std::uint64_t* option_values, unsigned option_count, char* log, std::size_t log_bytes);
CUresult gpModuleLoad(CUmodule* module, const gpupool::ImageHash* hash, unsigned* wanted, const int* options,
                      const std::uint64_t* option_values, unsigned option_count, char* log, std::size_t log_bytes);

// The JIT linker. Inputs are images; the result is read in parts. Logs are those of the state so far.
CUresult gpLinkCreate(CUlinkState* state, const int* options, const std::uint64_t* option_values, unsigned option_count,
                      std::size_t log_bytes);
CUresult gpLinkAdd(CUlinkState state, CUjitInputType type, const gpupool::ImageHash* hash, unsigned* wanted,
                   std::size_t bytes, const char* name, const int* options, const std::uint64_t* option_values,
                   unsigned option_count, char* log, std::size_t log_bytes);
CUresult gpLinkComplete(CUlinkState state, std::size_t* bytes, char* log, std::size_t log_bytes);
CUresult gpLinkRead(CUlinkState state, std::size_t offset, unsigned char* data, std::size_t data_bytes);
CUresult gpLinkDestroy(CUlinkState state);

// A function by name, loaded, with what a launch needs to know of it, since a launch follows as a rule.
// `count` says how many parameters it has; `layout` holds the first `capacity` of them. Its attributes are as
// gpFunctionAttributes gives them; kUnknownAttribute everywhere where the driver would not say.
CUresult gpFunctionResolve(CUfunction* function, CUmodule module, const char* name, gpupool::ParameterLayout* layout,
                           unsigned capacity, unsigned* count, int* attributes, unsigned attribute_count);
// The same of a kernel's function in the current context.
CUresult gpKernelFunction(CUfunction* function, CUkernel kernel, gpupool::ParameterLayout* layout, unsigned capacity,
                          unsigned* count, int* attributes, unsigned attribute_count);
// A kernel by name, and gpKernelFunction of it as far as `load` permits (`loaded`): else `count` is kUnknownLayout.
CUresult gpKernelResolve(CUkernel* kernel, CUlibrary library, const char* name, gpupool::KernelLoad load,
                         gpupool::ParameterLayout* layout, unsigned capacity, unsigned* count, CUfunction* function,
                         unsigned* loaded, int* attributes, unsigned attribute_count);
CUresult gpLibraryModule(CUmodule* module, CUlibrary library);
// All kernels' names, NUL-terminated, one after the other.
CUresult gpLibraryNames(CUlibrary library, char* names, std::size_t names_bytes, std::size_t* needed_bytes);
CUresult gpModuleNames(CUmodule module, char* names, std::size_t names_bytes, std::size_t* needed_bytes);

CUresult gpLaunch(const gpupool::LaunchShape* launch, const CUlaunchAttribute* attributes, unsigned attribute_count,
                  const unsigned char* arguments, std::size_t argument_bytes, CUstream stream);

// cuOccupancyMaxPotentialClusterSize (potential 1) and cuOccupancyMaxActiveClusters (0).
CUresult gpOccupancyClusters(int* result, unsigned potential, const gpupool::LaunchShape* launch,
                             const CUlaunchAttribute* attributes, unsigned attribute_count);

// Copies between host and device. Small data rides in the call; larger data (`data_bytes` 0, `transfer` not 0) is
// pulled by the worker chunk by chunk when its turn in the stream has come (NoticeType::pull). The first `ahead_bytes`
// of a transfer named with kTransferSentAhead come over lanes without being pulled, in pieces of kAheadPieceBytes,
// before or behind this call.
CUresult gpCopyToDevice(CUdeviceptr destination, std::size_t bytes, std::uint64_t transfer, std::uint64_t ahead_bytes,
                        const unsigned char* data, std::size_t data_bytes, CUstream stream);
// What follows in the stream is issued, and the data of a copy asked for, only when the GPU has come here.
CUresult gpStreamCatchUp(CUstream stream);
// The data comes back as bulk frames of `transfer`, before any reply to a call that waits for the stream.
CUresult gpCopyFromDevice(CUdeviceptr source, std::size_t bytes, std::uint64_t transfer, CUstream stream);
CUresult gpCopyShapedToDevice(const gpupool::CopyShape* shape, std::uint64_t transfer, const unsigned char* data,
                              std::size_t data_bytes, CUstream stream);
CUresult gpCopyShapedFromDevice(const gpupool::CopyShape* shape, std::uint64_t transfer, CUstream stream);
CUresult gpCopyShapedOnDevice(const gpupool::CopyShape* shape, CUstream stream);

CUresult gpContextSynchronize(CUcontext context);
// The same without taking the failures of its deferred calls, which are for whoever synchronizes with it. Where there
// is one that nobody was told of: CUDA_ERROR_NOT_READY, although the context has nothing left to do.
CUresult gpContextWait(CUcontext context);

// The stream waits until the application's function `ticket` has run in the client.
CUresult gpHostFunction(std::uint64_t ticket, CUstream stream);
// The application's function, announced by NoticeType::host_function, has returned.
CUresult gpHostFunctionDone(std::uint64_t ticket);

// ---- attributes of functions. `function` is a handle of a function, or of a kernel, which has them for each device.

// All of them in the order of CUfunction_attribute; kUnknownAttribute in place of what the driver does not know.
CUresult gpFunctionAttributes(CUfunction function, CUdevice device, int* values, unsigned capacity, unsigned* count);
// One that the client has checked.
CUresult gpFunctionSetAttribute(CUfunction function, CUdevice device, int attribute, int value);

// Says (NoticeType::event_complete) when the event's present record, which the client calls `record`, is complete.
CUresult gpEventWatch(CUevent event, std::uint64_t record);
// cuEventRecord and the above in one, of an event that the program has asked for before.
CUresult gpEventRecord(CUevent hEvent, CUstream hStream, std::uint64_t record);
// Says (NoticeType::stream_complete) when all that the stream has been given is complete. One at a time for a stream:
// another is ignored until the first has been told.
CUresult gpStreamWatch(CUstream stream);

// ---- mapped host memory

// Memory of the worker at the same address, full of zeros and registered with the driver in `context`.
CUresult gpHostMirror(CUcontext context, CUdeviceptr address, std::uint64_t bytes);
CUresult gpHostUnmirror(CUdeviceptr address);
// The client's own memory in the place of a mirror: the descriptor that it gave with `address` as its number. Ended as
// a mirror is.
CUresult gpHostShare(CUcontext context, CUdeviceptr address, std::uint64_t bytes);
// What the program has written: a record of protocol/codec/memory_changes.h.
CUresult gpHostWrite(const unsigned char* data, std::size_t data_bytes);

// ---- the trace (protocol/codec/trace_records.h)

// From here on the worker says what it does (NoticeType::trace_records), until the session ends.
CUresult gpTraceStart();
// The worker's clock, as its records have it.
CUresult gpTraceClock(std::uint64_t* now_ns);
// Answered when what was recorded so far has been sent. GPU work that does not end soon is left out.
CUresult gpTraceFlush();

// ---- graphs

// Adds a node, of any type but those below.
CUresult gpGraphAddNode(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies,
                        const CUgraphEdgeData* edges, std::size_t dependency_count, std::size_t edge_count,
                        const gpupool::GraphNode* node, const unsigned char* payload, std::size_t payload_bytes);
// One that has something of its own, which the caller is told: memory that it allocates, at `address`, or the graphs of
// a conditional node.
CUresult gpGraphAddOwningNode(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies,
                              const CUgraphEdgeData* edges, std::size_t dependency_count, std::size_t edge_count,
                              const gpupool::GraphNode* node, const unsigned char* payload, std::size_t payload_bytes,
                              CUdeviceptr* address, CUgraph* graphs, std::size_t graph_count);
// Of a graph's node, or, where `executable` is not null, of that node in it.
CUresult gpGraphNodeSetParams(CUgraphExec executable, CUgraphNode changed, const gpupool::GraphNode* node,
                              const unsigned char* payload, std::size_t payload_bytes);
// `payload_bytes` is what the node has; as much of it as `payload` has room for is written there.
CUresult gpGraphNodeGetParams(CUgraphNode asked, gpupool::GraphNode* node, unsigned char* payload, std::size_t capacity,
                              std::size_t* payload_bytes);
CUresult gpGraphInstantiate(CUgraphExec* executable, CUgraph graph, std::uint64_t flags, CUgraphNode* error_node,
                            int* outcome);
// The graph in the DOT language; the text is read in parts.
CUresult gpGraphDot(CUgraph graph, unsigned flags, std::size_t* bytes);
CUresult gpGraphDotRead(std::size_t offset, unsigned char* data, std::size_t data_bytes);

// Ends a capture. With `discard` the client has found it invalid: no graph comes of it.
CUresult gpCaptureEnd(CUstream stream, unsigned discard, CUgraph* graph);
CUresult gpCaptureInfo(CUstream stream, CUgraph* graph, CUgraphNode* dependencies, CUgraphEdgeData* edges,
                       std::size_t capacity, std::size_t* count);
// A copy to or from the client's memory, into a capturing stream; `plain`: of one piece, as cuMemcpyAsync's.
CUresult gpCaptureCopy(const gpupool::CopyShape* shape, unsigned plain, CUstream stream);
CUresult gpCaptureHostFunction(std::uint64_t function, CUstream stream);

CUresult gpContextCreate(CUcontext* context, unsigned flags, CUdevice device, const CUexecAffinityParam* affinities,
                         unsigned affinity_count);
CUresult gpContextDestroy(CUcontext context);
// The last reference to a primary context went away, or it was reset.
CUresult gpPrimaryContextEnd(CUcontext context, CUdevice device, unsigned reset);
