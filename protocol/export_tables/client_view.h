// The client's functions that the private tables call: implemented by the client's core, faked by the tests.
//
// Ownership: the core owns its view and leaves it installed until the process ends, because other threads may call
// table functions even at exit. Threads: every method may be called from any thread. Errors: CUresult, as from the
// corresponding public call; nothing throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

// What cudart read about a device through public calls; the integrity check covers it.
struct DeviceIdentity {
    std::array<std::uint8_t, 16> uuid{};  // from cuDeviceGetUuid (the first version)
    std::int32_t pci_domain = 0;
    std::int32_t pci_bus = 0;
    std::int32_t pci_device = 0;
};

// Called for each kernel of a module; `name` stays valid while the module is loaded.
using FunctionVisitor = void (*)(void* user, CUfunction function, const char* name);

class ClientView {
  public:
    virtual ~ClientView() = default;

    // The value that cuDriverGetVersion returns, and the devices in the order in which the program numbers them. Both
    // must not change once cuInit has succeeded.
    virtual int driver_version() noexcept = 0;
    virtual std::span<const DeviceIdentity> devices() noexcept = 0;

    // The handle of the device's primary context, active or not; neither retains nor activates it.
    virtual CUresult primary_context(CUdevice device, CUcontext* context) noexcept = 0;
    // As cuCtxGetCurrent.
    virtual CUresult current_context(CUcontext* context) noexcept = 0;
    // As cuCtxGetId; a null context is the current one. Unique per context.
    virtual CUresult context_id(CUcontext context, std::uint64_t* id) noexcept = 0;

    // The driver's object of a stream. `stream` may be a special handle; CU_STREAM_LEGACY and null mean the calling
    // thread's per-thread stream if `per_thread` is set. The object need only be valid for `stream_object_id`.
    virtual CUresult resolve_stream(CUcontext context, CUstream stream, bool per_thread, void** object) noexcept = 0;
    // As cuStreamGetId. Must be unique per stream: otherwise two streams would share one cuBLAS workspace.
    virtual CUresult stream_object_id(CUcontext context, void* object, std::uint64_t* id) noexcept = 0;
    virtual CUresult stream_id(CUcontext context, CUstream stream, std::uint64_t* id) noexcept = 0;

    // As cuModuleLoadData into the current context.
    virtual CUresult load_module(CUmodule* module, const void* image) noexcept = 0;
    // Returns the number of kernels visited, 0 if the module is not known.
    virtual int for_each_function(CUcontext context, CUmodule module, FunctionVisitor visit, void* user) noexcept = 0;
};

// The view that the tables' functions use; without one they return CUDA_ERROR_NOT_INITIALIZED.
void install(ClientView* view) noexcept;
ClientView* view() noexcept;

// `ask(view)`, for a table function with the output `out`; an error if there is no view, or `out` is null.
template <class Ask>
CUresult ask_view(const void* out, Ask ask) noexcept {
    ClientView* const client = view();
    if (client == nullptr) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return out == nullptr ? CUDA_ERROR_INVALID_VALUE : ask(*client);
}

// The slot of two tables that identifies a context.
inline CUresult context_id(CUcontext context, std::uint64_t* id) noexcept {
    return ask_view(id, [&](ClientView& client) { return client.context_id(context, id); });
}

}  // namespace gpupool::client::export_tables
