#include "server/supervision/message_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/passed_descriptors.h"

namespace gpupool::supervision {

namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
// The top byte of the length is the number of descriptors of the message. It is needed because a message without
// descriptors and one with some may arrive in the same read.
constexpr unsigned kDescriptorsShift = 24;
static_assert(kMaxMessageBytes < std::size_t{1} << kDescriptorsShift);
constexpr std::size_t kMaxGroups = 4;  // queued in one socket; our peers have at most one outstanding

Status wait_writable(int socket, std::chrono::steady_clock::time_point deadline) {
    while (true) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0) {
            return Error{ErrorCode::timed_out, "the other end of the supervision socket does not read"};
        }
        pollfd wanted{socket, POLLOUT, 0};
        const int ready = ::poll(&wanted, 1, static_cast<int>(left.count()));
        if (ready > 0) {
            return {};
        }
        if (ready < 0 && errno != EINTR) {
            return system_error("poll", errno);
        }
    }
}

}  // namespace

capnp::ReaderOptions bounded_reader(std::size_t bytes) {
    capnp::ReaderOptions options;
    options.traversalLimitInWords = 8 * (bytes / sizeof(capnp::word) + 16);
    options.nestingLimit = 16;
    return options;
}

MessageSocket::MessageSocket(UniqueFd socket, std::chrono::milliseconds send_timeout)
    : socket_(std::move(socket)), send_timeout_(send_timeout) {
    const int flags = ::fcntl(socket_.get(), F_GETFL);
    if (flags >= 0) {
        ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
    }
}

void MessageSocket::close() {
    socket_.reset();
    pending_.clear();
    descriptors_.clear();
}

Status MessageSocket::send(capnp::MessageBuilder& message, std::span<const int> descriptors) {
    const auto words = capnp::messageToFlatArray(message);
    const auto body = words.asBytes();
    if (body.size() > kMaxMessageBytes) {
        return Error{ErrorCode::limit_exceeded, fmt::format("a supervision message of {} bytes: at most {} are allowed",
                                                            body.size(), kMaxMessageBytes)};
    }
    if (descriptors.size() > kMaxDescriptors) {
        return Error{ErrorCode::internal, "too many descriptors for one supervision message"};
    }
    std::vector<char> bytes(kLengthBytes + body.size());
    const auto length = static_cast<std::uint32_t>(body.size() | descriptors.size() << kDescriptorsShift);
    std::memcpy(bytes.data(), &length, kLengthBytes);
    std::memcpy(bytes.data() + kLengthBytes, body.begin(), body.size());
    if (broken_) {
        return Error{ErrorCode::closed, "an earlier supervision message could not be sent"};
    }
    const Status sent = send_bytes(bytes, descriptors);
    broken_ = !sent;
    return sent;
}

Status MessageSocket::send_bytes(std::span<const char> bytes, std::span<const int> descriptors) {
    const auto deadline = std::chrono::steady_clock::now() + send_timeout_;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
    for (std::size_t sent = 0; sent < bytes.size();) {
        iovec part{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        if (sent == 0 && !descriptors.empty()) {
            attach_descriptors(header, control, descriptors);
        }
        const auto count = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
        if (count >= 0) {
            sent += static_cast<std::size_t>(count);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            GPUPOOL_TRY(wait_writable(socket_.get(), deadline));
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return Error{ErrorCode::closed, "the other end of the supervision socket is gone"};
        } else if (errno != EINTR) {
            return system_error("sendmsg", errno);
        }
    }
    return {};
}

Result<bool> MessageSocket::read_some() {
    std::byte buffer[16 << 10];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
    iovec part{buffer, sizeof(buffer)};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    ssize_t count = 0;
    do {
        count = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        }
        if (errno != ECONNRESET) {
            return system_error("recvmsg", errno);
        }
        count = 0;
    }
    if (std::vector<UniqueFd> group = take_descriptors(header); !group.empty()) {
        descriptors_.push_back(std::move(group));
    }
    if (descriptors_.size() > kMaxGroups) {
        return Error{ErrorCode::limit_exceeded, "too many descriptors on a supervision socket"};
    }
    if (count == 0) {
        ended_ = true;
        return false;
    }
    pending_.insert(pending_.end(), buffer, buffer + count);
    return true;
}

Status MessageSocket::take_whole_messages(std::vector<Message>& out) {
    std::size_t offset = 0;
    while (pending_.size() - offset >= kLengthBytes) {
        std::uint32_t length = 0;
        std::memcpy(&length, pending_.data() + offset, kLengthBytes);
        const std::size_t descriptors = length >> kDescriptorsShift;
        // A larger number means that the peer is not a gpupool process; then the length check below fails.
        if (descriptors <= kMaxDescriptors) {
            length &= (std::uint32_t{1} << kDescriptorsShift) - 1;
        }
        if (length > kMaxMessageBytes) {
            return Error{
                ErrorCode::limit_exceeded,
                fmt::format("a supervision message claims {} bytes: at most {} are allowed", length, kMaxMessageBytes)};
        }
        if (length == 0 || length % sizeof(capnp::word) != 0) {
            return Error{ErrorCode::invalid_input,
                         fmt::format("a supervision message claims {} bytes, which is not a valid length", length)};
        }
        if (pending_.size() - offset - kLengthBytes < length) {
            break;
        }
        Message message;
        message.words = kj::heapArray<capnp::word>(length / sizeof(capnp::word));
        std::memcpy(message.words.begin(), pending_.data() + offset + kLengthBytes, length);
        if (descriptors != 0) {
            if (descriptors_.empty() || descriptors_.front().size() != descriptors) {
                return Error{ErrorCode::invalid_input, "a supervision message arrived without its descriptors"};
            }
            message.descriptors = std::move(descriptors_.front());
            descriptors_.erase(descriptors_.begin());
        }
        out.push_back(std::move(message));
        offset += kLengthBytes + length;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
}

Result<std::vector<Message>> MessageSocket::receive() {
    std::vector<Message> messages;
    while (!ended_ && messages.size() < 16) {
        const auto more = read_some();
        if (!more) {
            return more.error();
        }
        if (*more) {
            GPUPOOL_TRY(take_whole_messages(messages));
        } else {
            break;
        }
    }
    if (ended_ && messages.empty()) {
        return Error{ErrorCode::closed, "the other end of the supervision socket is gone"};
    }
    return messages;
}

Status make_socket_pair(UniqueFd& first, UniqueFd& second) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return system_error("socketpair", errno);
    }
    first.reset(ends[0]);
    second.reset(ends[1]);
    // The first message has to fit before the worker reads. If the system allows less, its default is enough.
    constexpr int kBufferBytes = 512 << 10;
    ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
    return {};
}

}  // namespace gpupool::supervision
