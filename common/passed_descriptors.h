// File descriptors in a message over a Unix socket.
//
// Ownership: received descriptors belong to the caller. Threads: any. Errors: none.
#pragma once

#include <sys/socket.h>

#include <span>
#include <vector>

#include "common/unique_fd.h"

namespace gpupool {

// Makes `descriptors`, one or more, part of a message to send. `control` must have CMSG_SPACE for them, be aligned as a
// cmsghdr and live as long as the message.
void attach_descriptors(msghdr& message, char* control, std::span<const int> descriptors) noexcept;

// All descriptors that arrived with a message.
std::vector<UniqueFd> take_descriptors(msghdr& message);

}  // namespace gpupool
