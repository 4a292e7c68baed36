#include "protocol/transport/shm/local_socket.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "common/passed_descriptors.h"

namespace gpupool::transport::shm {
namespace {

constexpr std::size_t kMaxMessageDescriptors = 8;

Result<LocalAddress> make_address(const std::string& text, std::size_t first) {
    LocalAddress address;
    address.storage.sun_family = AF_UNIX;
    // A path is NUL-terminated; an abstract name begins with a NUL, and its length follows from the address's length.
    if (text.empty() || text.size() + 1 > sizeof(address.storage.sun_path)) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("\"{}\" cannot be a Unix socket's address: it must have 1 to "
                                 "{} characters",
                                 text, sizeof(address.storage.sun_path) - 1)};
    }
    std::memcpy(address.storage.sun_path + first, text.data(), text.size());
    address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size() + 1);
    return address;
}

}  // namespace

Result<LocalAddress> LocalAddress::of_path(const std::string& path) {
    return make_address(path, 0);
}

Result<LocalAddress> LocalAddress::abstract(const std::string& name) {
    return make_address(name, 1);
}

Result<UniqueFd> open_socket() {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) {
        return system_error("socket", errno);
    }
    return socket;
}

Result<UniqueFd> connect_socket(const LocalAddress& address) {
    auto socket = open_socket();
    if (!socket) {
        return socket;
    }
    while (::connect(socket->get(), address.get(), address.bytes) != 0) {
        if (errno != EINTR) {
            return Error{ErrorCode::unavailable, system_error("connect", errno).message};
        }
    }
    return socket;
}

Result<ucred> peer_of(int socket) {
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return system_error("SO_PEERCRED", errno);
    }
    return peer;
}

Status check_socket(int socket) {
    const auto is = [socket](int option, int expected) {
        int value = 0;
        socklen_t bytes = sizeof(value);
        return ::getsockopt(socket, SOL_SOCKET, option, &value, &bytes) == 0 && value == expected;
    };
    if (is(SO_DOMAIN, AF_UNIX) && is(SO_TYPE, SOCK_STREAM) && is(SO_ACCEPTCONN, 0)) {
        return {};
    }
    return Error{ErrorCode::invalid_input, fmt::format("descriptor {} is not a Unix stream socket", socket)};
}

Status send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageDescriptors)] = {};
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptors.size() > kMaxMessageDescriptors) {
        return Error{ErrorCode::internal, "too many descriptors for one message"};
    }
    if (!descriptors.empty()) {
        attach_descriptors(message, control, descriptors);
    }
    ssize_t sent = -1;
    do {
        sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent == static_cast<ssize_t>(bytes.size())) {
        return {};
    }
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
        return Error{ErrorCode::closed, "the other side closed the connection"};
    }
    return sent < 0 ? system_error("sendmsg", errno)
                    : Error{ErrorCode::system, "a local socket did not accept a whole message"};
}

Result<std::vector<UniqueFd>> receive_with_descriptors(int socket, std::span<std::byte> bytes) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageDescriptors)] = {};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t received = -1;
    do {
        received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (received < 0 && errno == EINTR);
    if (received < 0 && errno != ECONNRESET) {
        return system_error("recvmsg", errno);
    }
    std::vector<UniqueFd> descriptors = take_descriptors(message);
    if (received <= 0) {
        return Error{ErrorCode::closed, "the other side closed the connection"};
    }
    if (static_cast<std::size_t>(received) != bytes.size() || (message.msg_flags & MSG_CTRUNC) != 0) {
        return Error{ErrorCode::invalid_input, "a message on a local socket has a wrong size"};
    }
    return descriptors;
}

bool send_wakeup(int socket) noexcept {
    const char byte = 1;
    for (;;) {
        if (::send(socket, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return true;
        }
        // A socket full of wake-up bytes wakes its reader as well.
        if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
    }
}

bool take_wakeups(int socket) noexcept {
    char bytes[256];
    for (;;) {
        const ssize_t count = ::recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (count > 0) {
            return true;
        }
        if (count == 0) {
            return false;
        }
        if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
    }
}

}  // namespace gpupool::transport::shm
