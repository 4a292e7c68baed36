// What the private tables need to know of the client: implemented by the client's core, faked by the tests.
//
// Ownership: the core owns its view and leaves it installed until the process ends, since table functions may be called
// by other threads and at exit. Threads: every method may be called from any thread. Errors: CUresult, as from the
// public call that does the same; nothing throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

// What cudart read about a device through the public calls: the integrity check repeats it.
struct DeviceIdentity {
    std::array<std::uint8_t, 16> uuid{};  // as cuDeviceGetUuid (the first version) says
    std::int32_t pci_domain = 0;
    std::int32_t pci_bus = 0;
    std::int32_t pci_device = 0;
};

// Called for each kernel of a module; `name` stays valid while the module is loaded.
using FunctionVisitor = void (*)(void* user, CUfunction function, const char* name);

class ClientView {
  public:
    virtual ~ClientView() = default;

    // The value that cuDriverGetVersion gives, and the devices in ordinal order as the program sees them. Both must not
    // change once cuInit has succeeded.
    virtual int driver_version() noexcept = 0;
    virtual std::span<const DeviceIdentity> devices() noexcept = 0;

    // The handle that the device's primary context has, active or not; neither retains nor activates it.
    virtual CUresult primary_context(CUdevice device, CUcontext* context) noexcept = 0;
    // As cuCtxGetCurrent.
    virtual CUresult current_context(CUcontext* context) noexcept = 0;
    // As cuCtxGetId; a null context is the current one. Unique per context.
    virtual CUresult context_id(CUcontext context, std::uint64_t* id) noexcept = 0;

    // A stream as the driver's own object: `stream` may be one of the special handles, of which CU_STREAM_LEGACY and
    // null are the calling thread's own stream if `per_thread` is set. The object need only be good for
    // `stream_object_id`.
    virtual CUresult resolve_stream(CUcontext context, CUstream stream, bool per_thread, void** object) noexcept = 0;
    // As cuStreamGetId: unique per stream, or two streams would share one cuBLAS workspace.
    virtual CUresult stream_object_id(CUcontext context, void* object, std::uint64_t* id) noexcept = 0;
    virtual CUresult stream_id(CUcontext context, CUstream stream, std::uint64_t* id) noexcept = 0;

    // As cuModuleLoadData into the current context.
    virtual CUresult load_module(CUmodule* module, const void* image) noexcept = 0;
    // Returns the number of kernels that were visited, 0 where the module is not known.
    virtual int for_each_function(CUcontext context, CUmodule module, FunctionVisitor visit, void* user) noexcept = 0;
};

// The view that the tables' functions use; they return CUDA_ERROR_NOT_INITIALIZED while there is none.
void install(ClientView* view) noexcept;
ClientView* view() noexcept;

}  // namespace gpupool::client::export_tables
