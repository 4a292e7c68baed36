// Tables for profilers that the mathematical libraries use as well: identities of contexts and streams (cuBLAS,
// cuBLASLt, cuFFT), a module's kernels (cuFFT), and a cache that cuBLASLt requests without checking whether it exists.
#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/table.h"
#include "protocol/export_tables/tables.h"

namespace gpupool::client::export_tables {
namespace {

struct ToolsTls {
    static constexpr const char* kName = "TOOLS_TLS";
    static constexpr std::size_t kSlotCount = 3;
};

CUresult current_context(CUcontext* context) noexcept {
    return ask_view(context, [&](ClientView& client) { return client.current_context(context); });
}

struct ToolsIdentifiers {
    static constexpr const char* kName = "21318c60 (contexts and streams)";
    static constexpr std::size_t kSlotCount = 93;
};

CUresult stream_object_id(CUcontext context, void* object, std::uint64_t* id) noexcept {
    return ask_view(id, [&](ClientView& client) { return client.stream_object_id(context, object, id); });
}

CUresult resolve_stream(CUcontext context, CUstream stream, void** object, int per_thread) noexcept {
    return ask_view(
        object, [&](ClientView& client) { return client.resolve_stream(context, stream, per_thread != 0, object); });
}

struct ToolsModules {
    static constexpr const char* kName = "6e163fbe (module functions)";
    static constexpr std::size_t kSlotCount = 99;
};

// Returns the number of kernels, not a CUresult.
int for_each_function(CUcontext context, CUmodule module, FunctionVisitor visit, void* user) noexcept {
    ClientView* client = view();
    if (client == nullptr || visit == nullptr) {
        return 0;
    }
    return client->for_each_function(context, module, visit, user);
}

struct ComputeCache {
    static constexpr const char* kName = "1734dc26 (compute cache)";
    static constexpr std::size_t kSlotCount = 14;
};

// Reports failure, so that cuBLASLt works without the cache.
int no_cache() noexcept {
    return 1;
}

}  // namespace

const void* tools_tls() noexcept {
    static const auto table = make_table<ToolsTls>({{2, slot(current_context)}});
    return table.data();
}

const void* tools_identifiers() noexcept {
    static const auto table =
        make_table<ToolsIdentifiers>({{4, slot(context_id)}, {39, slot(stream_object_id)}, {51, slot(resolve_stream)}});
    return table.data();
}

const void* tools_modules() noexcept {
    static const auto table = make_table<ToolsModules>({{7, slot(for_each_function)}});
    return table.data();
}

const void* compute_cache() noexcept {
    static const auto table = [] {
        auto slots = make_table<ComputeCache>({});
        for (std::size_t i = 1; i < slots.size(); ++i) {
            slots[i] = slot(no_cache);
        }
        return slots;
    }();
    return table.data();
}

}  // namespace gpupool::client::export_tables
