// A driver library as a table of function pointers: NVIDIA's, the software GPU, or any other with the driver's ABI.
//
// There is one pointer per call of the call table, of the type that cuda.h declares. It is null if the library does not
// export the symbol (an older driver, the software GPU); `call()` then returns CUDA_ERROR_NOT_SUPPORTED.
#pragma once

#include <chrono>
#include <cstdint>

#include "protocol/calls/call.h"

namespace gpupool::driver {

struct Api {
#define GP_CALL(op, symbol, ...) decltype(&::symbol) symbol = nullptr;
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
};

// If set, call() adds the time that this thread's driver calls take. Null while tracing is off.
inline constinit thread_local std::uint64_t* taken_ns = nullptr;

template <class... Parameters, class... Given>
CUresult call(CUresult (*function)(Parameters...), Given... arguments) {
    if (function == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (taken_ns == nullptr) [[likely]] {
        return function(arguments...);
    }
    const auto start = std::chrono::steady_clock::now();
    const CUresult result = function(arguments...);
    *taken_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
    return result;
}

// Maps a call to its member of Api.
template <class Call>
struct Member;
#define GP_CALL(op, symbol, ...)                                        \
    template <>                                                         \
    struct Member<calls::symbol> {                                      \
        static auto get(const Api& api) noexcept { return api.symbol; } \
    };
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

}  // namespace gpupool::driver
