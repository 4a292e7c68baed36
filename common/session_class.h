// How a session shares its GPUs with others.
//
// Ownership: values. Threads: any. Errors: Result, whose message quotes the text and names what is accepted.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// In ascending order: a tenant that may have exclusive GPUs may have shared ones.
enum class SessionClass : std::uint8_t {
    shared,     // sessions of other jobs may be on the same GPU
    exclusive,  // the job has its GPUs alone
};

std::string_view name_of(SessionClass session_class);
Result<SessionClass> parse_session_class(std::string_view text);

// The priority of a session in the server's queue: from 0 to this; higher goes first.
inline constexpr std::uint64_t kMaxPriority = 100;

}  // namespace gpupool
