#include "protocol/transport/tcp/connector.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "protocol/transport/tcp/addresses.h"
#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

constexpr std::size_t kMaxAddresses = 16;  // of one name; more would divide the deadline too finely

Status finish_connect(int descriptor, Clock::time_point deadline) {
    for (;;) {
        pollfd entry{descriptor, POLLOUT, 0};
        const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
        if (ready == 0) {
            return Error{ErrorCode::timed_out, "no answer in time"};
        }
        if (ready < 0) {
            if (errno == EINTR) {
                continue;
            }
            return system_error("poll", errno);
        }
        int error = 0;
        socklen_t error_bytes = sizeof(error);
        if (::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) {
            error = errno;
        }
        if (error == 0) {
            return {};
        }
        auto failure = system_error("connect", error);
        failure.code = error == ETIMEDOUT ? ErrorCode::timed_out : ErrorCode::unavailable;
        return failure;
    }
}

Result<std::unique_ptr<Connection>> connect_one(const Address& address, Clock::time_point deadline) {
    const int descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        return system_error("socket", errno);
    }
    Status status;
    if (::connect(descriptor, address.get(), address.bytes) != 0) {
        status = errno == EINPROGRESS || errno == EINTR
                     ? finish_connect(descriptor, deadline)
                     : Status(Error{ErrorCode::unavailable, system_error("connect", errno).message});
    }
    if (!status) {
        ::close(descriptor);
        return status.error();
    }
    return adopt(descriptor);
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Clock::time_point deadline) {
    const auto addresses = resolve(endpoint, deadline);
    if (!addresses) {
        return addresses.error().within(fmt::format("cannot connect to {}", endpoint.to_string()));
    }
    return connect(endpoint, *addresses, deadline);
}

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, std::span<const Address> addresses,
                                            Clock::time_point deadline) {
    addresses = addresses.first(std::min(addresses.size(), kMaxAddresses));
    bool all_timed_out = true;
    std::string reasons;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        const auto& address = addresses[i];
        auto until = deadline;
        if (deadline != kNoDeadline) {
            const auto now = Clock::now();
            until = now + std::max(deadline - now, Clock::duration::zero()) / (addresses.size() - i);
        }
        auto connection = connect_one(address, until);
        if (connection) {
            return connection;
        }
        all_timed_out = all_timed_out && connection.error().code == ErrorCode::timed_out;
        const bool named =
            address.to_string() == endpoint.to_string();  // the common prefix of the message names it already
        reasons += fmt::format("{}{}{}{}", reasons.empty() ? "" : "; ", named ? "" : address.to_string(),
                               named ? "" : ": ", connection.error().message);
    }
    return Error{all_timed_out ? ErrorCode::timed_out : ErrorCode::unavailable,
                 fmt::format("cannot connect to {}: {}", endpoint.to_string(), reasons)};
}

}  // namespace gpupool::transport::tcp
