// A driver library as a table of function pointers: NVIDIA's, the software GPU, or any other with the driver's ABI.
//
// Every call of the table has its pointer, of the type that cuda.h declares; it is null where the library does not export
// the symbol (an older driver, the software GPU), and `call()` then answers CUDA_ERROR_NOT_SUPPORTED.
#pragma once

#include "protocol/calls/call.h"

namespace gpupool::driver {

struct Api {
#define GP_CALL(op, symbol, ...) decltype(&::symbol) symbol = nullptr;
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
};

template <class... Parameters, class... Given>
CUresult call(CUresult (*function)(Parameters...), Given... arguments) {
    return function == nullptr ? CUDA_ERROR_NOT_SUPPORTED : function(arguments...);
}

// Which member of Api is a call's.
template <class Call>
struct Member;
#define GP_CALL(op, symbol, ...)                                         \
    template <>                                                          \
    struct Member<calls::symbol> {                                       \
        static auto get(const Api& api) noexcept { return api.symbol; }  \
    };
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

}  // namespace gpupool::driver
