#include "protocol/transport/connection.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace gpupool::transport {

Status receive_exactly(Connection& connection, MutableBuffer buffer) {
    while (!buffer.empty()) {
        auto received = connection.receive(buffer);
        if (!received) {
            return received.error();
        }
        buffer = buffer.subspan(*received);
    }
    return {};
}

Result<std::unique_ptr<Connection>> Listener::accept() {
    for (;;) {
        auto accepted = accept_now();
        if (!accepted || *accepted != nullptr) {
            return accepted;
        }
        pollfd entry{native_handle(), POLLIN, 0};
        if (::poll(&entry, 1, -1) < 0 && errno != EINTR) {
            return system_error("poll", errno);
        }
    }
}

std::optional<Error> accept_failure(int error) {
    switch (error) {
        case EINTR:
        case ECONNABORTED:
        // TCP only: network errors of the one connection.
        case EPROTO:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case EOPNOTSUPP:
        case ENETUNREACH:
        case EPERM: return std::nullopt;
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM: return Error{ErrorCode::limit_exceeded, system_error("accept", error).message};
        default: return system_error("accept", error);
    }
}

int poll_timeout_ms(Clock::time_point deadline) noexcept {
    if (deadline == kNoDeadline) {
        return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace gpupool::transport
