// The call table at run time: each call's names, delivery and support by opcode, for reports, traces and
// cuGetProcAddress.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/calls/rules.h"

namespace gpupool::calls {

struct CallInfo {
    std::uint16_t opcode;
    std::string_view name;       // the symbol
    std::string_view base_name;  // the name that cuGetProcAddress takes; empty for gpupool's own calls
    int since;                   // CUDA version, e.g. 12040
    Delivery delivery;
    bool composed;            // implemented by the client with gpupool's own calls, which have their own deliveries
    bool handled;             // the client has a function for it, which may answer without sending
    const char* why_refused;  // or nullptr
    const char* per_thread_suffix;  // "_ptsz", "_ptds", or nullptr
    int per_thread_since;
};

// In opcode order.
std::span<const CallInfo> all_calls() noexcept;

// The call with this opcode, or nullptr.
const CallInfo* find(std::uint16_t opcode) noexcept;

// The name for logs; "unknown" if no call has this opcode.
std::string_view name_of(std::uint16_t opcode) noexcept;

}  // namespace gpupool::calls
