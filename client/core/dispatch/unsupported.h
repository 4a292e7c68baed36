// Logs calls that return CUDA_ERROR_NOT_SUPPORTED, with the reason: each call once per reason and process.
//
// Threads: any.
// Errors: none.
#pragma once

#include <cstdint>

namespace gpupool::client {

class Session;

// gpupool refuses the call, or refuses it with these arguments, or the server's driver does.
void note_unsupported(std::uint16_t opcode) noexcept;
// The call was not sent, because client and server have not agreed on it.
void note_not_agreed(const Session& session, std::uint16_t opcode) noexcept;

}  // namespace gpupool::client
