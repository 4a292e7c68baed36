// What the private tables see of a session, and how a new session gets its heaps, pools and host functions.

#include <vector>

#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"
#include "client/core/session/runtime.h"
#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/registry.h"

namespace gpupool::client {
namespace {

using export_tables::DeviceIdentity;
using export_tables::FunctionVisitor;

class View final : public export_tables::ClientView {
  public:
    explicit View(Session& session) : session_(session) {
        for (const Device& device : session.devices.devices) {
            DeviceIdentity& identity = identities_.emplace_back();
            std::copy(std::begin(device.uuid.bytes), std::end(device.uuid.bytes), identity.uuid.begin());
            device.attributes.get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &identity.pci_domain);
            device.attributes.get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &identity.pci_bus);
            device.attributes.get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &identity.pci_device);
        }
    }

    int driver_version() noexcept override { return session_.devices.driver_version; }
    std::span<const DeviceIdentity> devices() noexcept override { return identities_; }

    CUresult primary_context(CUdevice device, CUcontext* context) noexcept override {
        if (!session_.devices.valid(device)) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *context = session_.contexts.primary(device).handle;
        return CUDA_SUCCESS;
    }
    CUresult current_context(CUcontext* context) noexcept override {
        const ContextState* current = this_thread().current();
        *context = current == nullptr ? nullptr : current->handle;
        return CUDA_SUCCESS;
    }
    CUresult context_id(CUcontext context, std::uint64_t* id) noexcept override {
        const ContextState* state = context == nullptr ? this_thread().current() : session_.contexts.find(context);
        if (state == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        *id = state->id;
        return CUDA_SUCCESS;
    }
    CUresult resolve_stream(CUcontext, CUstream stream, bool per_thread, void** object) noexcept override {
        // CUDA's libraries pass the object to this class alone, so it need not be an address. It is the stream's
        // handle, or for a default stream a number with the thread.
        const std::uint64_t value = codec::to_wire(stream);
        if (value == 2 || (value == 0 && per_thread) || (value == 1 && per_thread)) {
            *object = reinterpret_cast<void*>(2 + (std::uint64_t{this_thread().index} << 8));
        } else {
            *object = reinterpret_cast<void*>(value == 0 ? 1 : value);
        }
        return CUDA_SUCCESS;
    }
    CUresult stream_object_id(CUcontext, void* object, std::uint64_t* id) noexcept override {
        *id = reinterpret_cast<std::uint64_t>(object);
        return CUDA_SUCCESS;
    }
    CUresult stream_id(CUcontext context, CUstream stream, std::uint64_t* id) noexcept override {
        void* object = nullptr;
        resolve_stream(context, stream, this_thread().per_thread_default, &object);
        return stream_object_id(context, object, id);
    }
    CUresult load_module(CUmodule* module, const void* image) noexcept override {
        return ::cuModuleLoadData(module, image);
    }
    int for_each_function(CUcontext, CUmodule module, FunctionVisitor visit, void* user) noexcept override {
        return visit_functions(module, visit, user);
    }

  private:
    Session& session_;
    std::vector<DeviceIdentity> identities_;
};

}  // namespace

void start_session(Session& session) {
    for (int device = 0; device < static_cast<int>(session.devices.devices.size()); ++device) {
        DeviceHeap::Server server;
        server.commit = [device](std::uint64_t address, std::uint64_t bytes) {
            return remote<calls::gpSlabCreate>(device, address, bytes);
        };
        server.prepare = [device](std::uint64_t address, std::uint64_t bytes) {
            return remote<calls::gpSlabPrepare>(device, address, bytes);
        };
        server.release = [](std::uint64_t address, std::uint64_t bytes) {
            remote<calls::gpSlabDestroy>(address, bytes);
        };
        session.heaps.push_back(std::make_unique<DeviceHeap>(session.window, std::move(server)));
        session.pools.push_back(std::make_unique<StreamPool>(*session.heaps.back()));
    }
    session.heaps_are_made.store(true, std::memory_order_release);
    session.host_functions.start([&session](std::uint64_t ticket) {
        if (session.host_mirrors.any()) {
            send_host_changes(session);
        }
        // Not remote(): this thread may not make CUDA calls, but must report.
        static_assert(codec::is_core_call<calls::gpHostFunctionDone>);
        const void* arguments[] = {&ticket};
        session.send(calls::gpHostFunctionDone::kOpcode, Session::Gives::nothing, false,
                     codec::command_bytes<calls::gpHostFunctionDone>(arguments),
                     [&](codec::Writer& out) { codec::write_command<calls::gpHostFunctionDone>(out, arguments); });
    });
    export_tables::install(new View(session));  // never deleted: table functions may be called until the process ends
}

}  // namespace gpupool::client
