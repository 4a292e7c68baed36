// The call table at run time: names, classes and states by opcode, for reports, traces and cuGetProcAddress.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/calls/rules.h"

namespace gpupool::calls {

struct CallInfo {
    std::uint16_t opcode;
    std::string_view name;       // the symbol
    std::string_view base_name;  // what cuGetProcAddress is asked for; empty for gpupool's own calls
    int since;                   // CUDA version, e.g. 12040
    Delivery delivery;
    bool composed;                  // of gpupool's own calls, which have deliveries of their own
    bool handled;                   // by the client, which may know the answer
    const char* why_refused;        // or nullptr
    const char* per_thread_suffix;  // "_ptsz", "_ptds", or nullptr
    int per_thread_since;
};

// In opcode order.
std::span<const CallInfo> all_calls() noexcept;

// The call with this opcode, or nullptr.
const CallInfo* find(std::uint16_t opcode) noexcept;

// The name for logs; "unknown" where there is none.
std::string_view name_of(std::uint16_t opcode) noexcept;

}  // namespace gpupool::calls
