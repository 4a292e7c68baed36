// A fake client that returns constants, for the tests of the tables.
#pragma once

#include <vector>

#include "protocol/export_tables/client_view.h"

namespace gpupool::client::export_tables::test {

template <class T>
T handle(std::uintptr_t value) {
    return reinterpret_cast<T>(value);
}

class FakeView : public ClientView {
  public:
    FakeView() { install(this); }
    ~FakeView() override { install(nullptr); }

    int driver_version() noexcept override { return 13000; }
    std::span<const DeviceIdentity> devices() noexcept override { return identities; }
    CUresult primary_context(CUdevice device, CUcontext* context) noexcept override {
        if (device != 0) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *context = handle<CUcontext>(0x1000);
        return CUDA_SUCCESS;
    }
    CUresult current_context(CUcontext* context) noexcept override {
        *context = current;
        return CUDA_SUCCESS;
    }
    CUresult context_id(CUcontext context, std::uint64_t* id) noexcept override {
        *id = reinterpret_cast<std::uintptr_t>(context != nullptr ? context : current) + 1;
        return CUDA_SUCCESS;
    }
    CUresult resolve_stream(CUcontext, CUstream stream, bool per_thread, void** object) noexcept override {
        *object = handle<void*>(reinterpret_cast<std::uintptr_t>(stream) + (per_thread ? 0x500 : 0x400));
        return CUDA_SUCCESS;
    }
    CUresult stream_object_id(CUcontext, void* object, std::uint64_t* id) noexcept override {
        *id = reinterpret_cast<std::uintptr_t>(object) * 2;
        return CUDA_SUCCESS;
    }
    CUresult stream_id(CUcontext, CUstream stream, std::uint64_t* id) noexcept override {
        *id = reinterpret_cast<std::uintptr_t>(stream) * 3;
        return CUDA_SUCCESS;
    }
    CUresult load_module(CUmodule* module, const void* image) noexcept override {
        loaded.push_back(image);
        *module = handle<CUmodule>(0x2000 + loaded.size());
        return CUDA_SUCCESS;
    }
    int for_each_function(CUcontext, CUmodule module, FunctionVisitor visit, void* user) noexcept override {
        if (module != handle<CUmodule>(0x2001)) {
            return 0;
        }
        visit(user, handle<CUfunction>(0x3001), "first");
        visit(user, handle<CUfunction>(0x3002), "second");
        return 2;
    }

    std::vector<DeviceIdentity> identities;
    CUcontext current = nullptr;
    std::vector<const void*> loaded;
};

// The table as an application sees it.
const void* const* table(const char* uuid);

template <class Function>
Function* function(const char* uuid, std::size_t slot) {
    return reinterpret_cast<Function*>(const_cast<void*>(table(uuid)[slot]));
}

inline constexpr const char* kCudartInterfaceId = "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9";
inline constexpr const char* kCallbackHooksId = "a094798c-2e74-2e74-93f2-0800200c0a66";
inline constexpr const char* kToolsTlsId = "42d85a81-23f6-cb47-8298-f6e78a3aecdc";
inline constexpr const char* kContextStorageId = "c693336e-1121-df11-a8c3-68f355d89593";
inline constexpr const char* kContextChecksId = "263e8860-7cd2-6143-92f6-bbd5006dfa7e";
inline constexpr const char* kIntegrityCheckId = "d4082055-bde6-704b-8d34-ba123c66e1f2";
inline constexpr const char* kToolsIdentifiersId = "21318c60-9714-3248-8ca6-41ff7324c8f2";
inline constexpr const char* kToolsModulesId = "6e163fbe-b958-444d-835c-e182aff1991e";
inline constexpr const char* kComputeCacheId = "1734dc26-800d-4745-8726-c0f1e7dd8bca";

}  // namespace gpupool::client::export_tables::test
