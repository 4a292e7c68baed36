// The tables that every copy of libcudart requests when it starts: its own interface, the callback hooks, context
// checks.
#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/table.h"
#include "protocol/export_tables/tables.h"

namespace gpupool::client::export_tables {
namespace {

struct CudartInterface {
    static constexpr const char* kName = "CUDART_INTERFACE";
    static constexpr std::size_t kSlotCount = 13;
};

CUresult load_image(CUmodule* module, const void* image) noexcept {
    ClientView* client = view();
    if (client == nullptr) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (module == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return client->load_module(module, image);
}

// cudart up to 11 loads modules with this; later versions call cuLibraryLoadData.
CUresult load_wrapper(CUmodule* module, const void* wrapper) noexcept {
    return load_image(module, wrapper);
}

CUresult load_wrapper_extended(CUmodule* module, const void* wrapper, void*, void*, std::uint32_t) noexcept {
    return load_image(module, wrapper);
}

CUresult load_container(const void* container, CUmodule* module, void*, void*, std::uint32_t) noexcept {
    return load_image(module, container);
}

CUresult primary_context(CUcontext* context, CUdevice device) noexcept {
    return ask_view(context, [&](ClientView& client) { return client.primary_context(device, context); });
}

// Only the OpenGL and VDPAU set-up calls create a primary context with properties.
CUresult start_primary_context(CUdevice, const std::uint64_t*) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;
}

void accept_size(std::size_t) noexcept {}

// The PTX compiler is part of the server's driver: there is nothing to load.
CUresult load_compiler() noexcept {
    return CUDA_SUCCESS;
}

struct CallbackHooks {
    static constexpr const char* kName = "TOOLS_RUNTIME_CALLBACK_HOOKS";
    static constexpr std::size_t kSlotCount = 7;
};

// One word per callback id; all zero, because no profiler ever subscribes. cudart checks their number.
std::uint32_t runtime_enable_words[1024];
std::uint32_t resource_enable_words[14];

void runtime_callback(std::uint32_t, void*) noexcept {}
void resource_callback(std::uint32_t, void*) noexcept {}

void runtime_words(std::uint32_t** words, std::size_t* count) noexcept {
    *words = runtime_enable_words;
    *count = std::size(runtime_enable_words);
}

void resource_words(std::uint32_t** words, std::size_t* count) noexcept {
    *words = resource_enable_words;
    *count = std::size(resource_enable_words);
}

CUresult stream_id(CUcontext context, CUstream stream, std::uint64_t* id) noexcept {
    return ask_view(id, [&](ClientView& client) { return client.stream_id(context, stream, id); });
}

struct ContextChecks {
    static constexpr const char* kName = "CONTEXT_CHECKS";
    static constexpr std::size_t kSlotCount = 15;
};

// 0: an ordinary context, to be used as it is; cudart reads `other` only if the flag is 1.
CUresult check_context(CUcontext, std::uint32_t* flag, CUcontext*) noexcept {
    if (flag == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flag = 0;
    return CUDA_SUCCESS;
}

// 0: cudart keeps the handle from CUDART_INTERFACE instead of the one that Retain returns; they are the same.
std::uint32_t uses_retained_handle() noexcept {
    return 0;
}

}  // namespace

const void* cudart_interface() noexcept {
    static const auto table = make_table<CudartInterface>({{1, slot(load_wrapper)},
                                                           {2, slot(primary_context)},
                                                           {3, slot(start_primary_context)},
                                                           {6, slot(load_wrapper_extended)},
                                                           {7, slot(accept_size)},
                                                           {8, slot(load_container)},
                                                           {10, nullptr},
                                                           {12, slot(load_compiler)}});
    return table.data();
}

const void* runtime_callback_hooks() noexcept {
    static const auto table = make_table<CallbackHooks>({{1, slot(runtime_callback)},
                                                         {2, slot(runtime_words)},
                                                         {3, slot(stream_id)},
                                                         {4, slot(context_id)},
                                                         {5, slot(resource_callback)},
                                                         {6, slot(resource_words)}});
    return table.data();
}

const void* context_checks() noexcept {
    static const auto table = make_table<ContextChecks>({{2, slot(check_context)}, {3, slot(uses_retained_handle)}});
    return table.data();
}

}  // namespace gpupool::client::export_tables
