// Why something waits in the worker, as traces and reports name it. The worker's gate explains them
// (server/worker/gate/gate.h). The numbers travel: new reasons go to the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpupool::codec {

enum class Reason : std::uint8_t {
    none,           // it does not wait
    order,          // for earlier work: of its queue, of another stream, or all of it
    credit,         // for places in the driver's queue
    data,           // for data from the client, or for staging memory
    driver_call,    // for a driver call of a helper
    driver_closed,  // for the driver to open
    lease,          // for the session's lease of the GPU
    bandwidth,      // for the session's bandwidth of copies
};
inline constexpr std::size_t kReasons = 8;

constexpr std::string_view name_of(Reason reason) noexcept {
    switch (reason) {
        case Reason::none: return "none";
        case Reason::order: return "order";
        case Reason::credit: return "credit";
        case Reason::data: return "data";
        case Reason::driver_call: return "driver call";
        case Reason::driver_closed: return "driver closed";
        case Reason::lease: return "lease";
        case Reason::bandwidth: return "bandwidth";
    }
    return "unknown";
}

}  // namespace gpupool::codec
