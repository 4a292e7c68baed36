// cuGetProcAddress, by the rules of the real driver, as measured: of the symbols with a base name, it returns the one
// with the highest version not above the requested one; with the per-thread flag, the per-thread form if there is one.

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/calls/handlers.h"
#include "client/core/session/runtime.h"

namespace gpupool::client::entry {
namespace {

struct Symbol {
    int since;
    bool per_thread;
    void* address;
};
using Index = std::unordered_map<std::string_view, std::vector<Symbol>>;

const Index& index() {
    static const Index& symbols = *[] {
        auto* table = new Index;
        const auto add = [&](std::string_view base, int since, bool per_thread, void* address) {
            (*table)[base].push_back({since, per_thread, address});
        };
#define GP_CALL(op, symbol, base, since, ...) add(#base, since, false, reinterpret_cast<void*>(&::symbol));
#define GP_PER_THREAD(symbol, suffix, since, ...) \
    add(calls::symbol::kBaseName, since, true, reinterpret_cast<void*>(&::symbol##suffix));
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
        return table;
    }();
    return symbols;
}

constexpr cuuint64_t kKnownFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

int driver_version() {
    const Session* session = connect_session();
    return session == nullptr ? CUDA_VERSION : session->devices.driver_version;
}

// `status` says whether the symbol was found; the result is only about the arguments.
CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult& status) {
    if (name == nullptr || function == nullptr || (flags & ~kKnownFlags) != 0 || version > driver_version()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = nullptr;
    status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const auto it = index().find(name);
    if (it == index().end()) {
        return CUDA_SUCCESS;
    }
    const std::vector<Symbol>& symbols = it->second;
    const bool has_per_thread =
        std::any_of(symbols.begin(), symbols.end(), [](const Symbol& s) { return s.per_thread; });
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 && has_per_thread;
    const Symbol* best = nullptr;
    for (const Symbol& symbol : symbols) {
        if (symbol.per_thread == per_thread && symbol.since <= version &&
            (best == nullptr || symbol.since > best->since)) {
            best = &symbol;
        }
    }
    if (best == nullptr) {
        status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    }
    *function = best->address;
    status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = look_up(symbol, pfn, cudaVersion, flags, status);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = look_up(symbol, pfn, cudaVersion, flags, status);
    if (result == CUDA_SUCCESS && symbolStatus != nullptr) {
        *symbolStatus = status;
    }
    return result;
}

}  // namespace gpupool::client::entry
