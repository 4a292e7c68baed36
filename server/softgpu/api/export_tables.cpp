// The private tables that CUDA's own libraries request when a program loads the software GPU in place of the driver.
// The tables are shared with gpupool's client; this file provides the view of the driver that they need.
#include "server/softgpu/api/export_tables.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/registry.h"
#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {
namespace {

namespace tables = client::export_tables;

class View final : public tables::ClientView {
  public:
    View() {
        for (std::size_t ordinal = 0; ordinal < state().devices.size(); ++ordinal) {
            const auto device = static_cast<CUdevice>(ordinal);
            tables::DeviceIdentity& identity = identities_.emplace_back();
            CUuuid uuid{};
            cuDeviceGetUuid(&uuid, device);
            std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), identity.uuid.begin());
            cuDeviceGetAttribute(&identity.pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
            cuDeviceGetAttribute(&identity.pci_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
            cuDeviceGetAttribute(&identity.pci_device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
        }
    }

    int driver_version() noexcept override {
        int version = 0;
        cuDriverGetVersion(&version);
        return version;
    }
    std::span<const tables::DeviceIdentity> devices() noexcept override { return identities_; }

    CUresult primary_context(CUdevice device, CUcontext* context) noexcept override {
        Device* found;
        if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
            return error;
        }
        *context = reinterpret_cast<CUcontext>(found->primary.get());
        return CUDA_SUCCESS;
    }
    CUresult current_context(CUcontext* context) noexcept override { return cuCtxGetCurrent(context); }
    CUresult context_id(CUcontext context, std::uint64_t* id) noexcept override {
        unsigned long long value = 0;
        const CUresult error = cuCtxGetId(context, &value);
        if (error == CUDA_SUCCESS) {
            *id = value;
        }
        return error;
    }
    // The stream's id stands for its object, since callers only use the object to get the id.
    CUresult resolve_stream(CUcontext, CUstream stream, bool per_thread, void** object) noexcept override {
        if (per_thread && (stream == nullptr || stream == CU_STREAM_LEGACY)) {
            stream = CU_STREAM_PER_THREAD;
        }
        StreamPtr found;
        if (const CUresult error = find_stream(stream, found); error != CUDA_SUCCESS) {
            return error;
        }
        *object = reinterpret_cast<void*>(found->id);
        return CUDA_SUCCESS;
    }
    CUresult stream_object_id(CUcontext, void* object, std::uint64_t* id) noexcept override {
        *id = reinterpret_cast<std::uint64_t>(object);
        return CUDA_SUCCESS;
    }
    CUresult stream_id(CUcontext context, CUstream stream, std::uint64_t* id) noexcept override {
        void* object = nullptr;
        const CUresult error = resolve_stream(context, stream, false, &object);
        if (error == CUDA_SUCCESS) {
            *id = reinterpret_cast<std::uint64_t>(object);
        }
        return error;
    }
    CUresult load_module(CUmodule* module, const void* image) noexcept override {
        return cuModuleLoadData(module, image);
    }
    int for_each_function(CUcontext, CUmodule handle, tables::FunctionVisitor visit, void* user) noexcept override {
        const auto module = state().modules.find(handle);
        if (module == nullptr) {
            return 0;
        }
        int count = 0;
        for (const auto& candidate : module->code->functions) {
            if (!candidate.entry || !candidate.defined) {
                continue;
            }
            visit(user, reinterpret_cast<CUfunction>(module->function(candidate).get()), candidate.name.c_str());
            ++count;
        }
        return count;
    }

  private:
    std::vector<tables::DeviceIdentity> identities_;
};

}  // namespace

void install_export_tables() {
    tables::install(new View);  // table functions may be called until the process ends
}

void notify_context_end(const Context& context) {
    tables::context_ends(reinterpret_cast<CUcontext>(const_cast<Context*>(&context)));
}

}  // namespace gpupool::softgpu

extern "C" CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
    using namespace gpupool::softgpu;
    if (table == nullptr || id == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *table = tables::find(*id);
    return *table == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
