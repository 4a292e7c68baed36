// The per-thread forms of entry points, derived from the call table. Each calls the plain form with another meaning of
// the null stream.
#include "protocol/calls/macros.h"
#include "server/softgpu/api/cuda_api.h"
#include "server/softgpu/api/entry_points.h"

namespace gpupool::softgpu {

bool& PerThreadDefault::on() {
    thread_local bool on = false;
    return on;
}

}  // namespace gpupool::softgpu

#define GP_CALL(...)
#define GP_PER_THREAD(symbol, suffix, since, params)                                                                  \
    extern "C" CUresult CUDAAPI symbol##suffix(GP_TYPED(symbol##suffix, params)) {                                    \
        static const auto plain = reinterpret_cast<decltype(&symbol)>(::gpupool::softgpu::find_entry_point(#symbol)); \
        if (plain == nullptr) return CUDA_ERROR_NOT_SUPPORTED;                                                        \
        const ::gpupool::softgpu::PerThreadDefault per_thread;                                                        \
        return plain(GP_STRIP params);                                                                                \
    }
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
