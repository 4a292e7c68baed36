#include "protocol/transport/tcp/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "protocol/transport/tcp/addresses.h"

namespace gpupool::transport::tcp {
namespace {

constexpr std::size_t kMaxPieces = 256;  // per system call; the kernel takes 1024

// A host that vanished silently is noticed after idle + interval * probes seconds.
constexpr int kKeepaliveIdleSeconds = 15;
constexpr int kKeepaliveIntervalSeconds = 5;
constexpr int kKeepaliveProbes = 3;
static_assert(kAnswerTimeout.count() == kKeepaliveIdleSeconds + kKeepaliveIntervalSeconds * kKeepaliveProbes);
constexpr int kChecks = 6;  // how often the peer is checked within that time

void set_option(int descriptor, int level, int name, int value) {
    // Only tuning: a socket that does not support an option (a local one) works without it.
    (void)::setsockopt(descriptor, level, name, &value, sizeof(value));
}

// Leaves the buffer sizes to the kernel: setting them would disable its automatic tuning, which allows more than an
// unprivileged process may request.
void tune(int descriptor, int family) {
    if (family != AF_INET && family != AF_INET6) {
        return;
    }
    set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

// Configures the descriptor and returns the description of its peer.
Result<std::string> prepare(int descriptor) {
    int type = 0;
    socklen_t type_bytes = sizeof(type);
    if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0) {
        return system_error("getsockopt", errno);
    }
    if (type != SOCK_STREAM) {
        return Error{ErrorCode::invalid_input, fmt::format("descriptor {} is not a stream socket", descriptor)};
    }
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
        ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
        return system_error("fcntl", errno);
    }
    auto peer = peer_address(descriptor);
    if (!peer) {
        return peer.error();
    }
    tune(descriptor, peer->family());
    const bool ip = peer->family() == AF_INET || peer->family() == AF_INET6;
    return ip ? "tcp " + peer->to_string() : std::string("local socket");
}

}  // namespace

Result<std::unique_ptr<Connection>> adopt(int descriptor, std::chrono::milliseconds answer_timeout) {
    auto name = prepare(descriptor);
    if (!name) {
        if (descriptor >= 0) {
            ::close(descriptor);
        }
        return name.error();
    }
    return std::unique_ptr<Connection>(std::make_unique<TcpConnection>(descriptor, std::move(*name), answer_timeout));
}

TcpConnection::TcpConnection(int descriptor, std::string peer, std::chrono::milliseconds answer_timeout)
    : descriptor_(descriptor), peer_(std::move(peer)), answer_timeout_(answer_timeout) {}

TcpConnection::~TcpConnection() {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
}

Error TcpConnection::failure(const char* operation, int errno_value) const {
    if (shut_down_.load(std::memory_order_acquire)) {
        return {ErrorCode::closed, "the connection was closed"};
    }
    if (errno_value == EPIPE || errno_value == ECONNRESET) {
        return {ErrorCode::closed, fmt::format("the connection to {} was broken by the other side", peer_)};
    }
    return system_error(fmt::format("{} ({})", operation, peer_), errno_value);
}

// One system call for `buffers`, of which `done_bytes` of the first have been sent. Returns zero when nothing is left.
Result<std::size_t> TcpConnection::send_once(std::span<const ConstBuffer> buffers, std::size_t done_bytes, int flags) {
    std::array<iovec, kMaxPieces> pieces;
    std::size_t count = 0;
    for (std::size_t i = 0; i < buffers.size() && count < kMaxPieces; ++i) {
        const auto buffer = i == 0 ? buffers[i].subspan(done_bytes) : buffers[i];
        if (!buffer.empty()) {
            pieces[count++] = {const_cast<std::byte*>(buffer.data()), buffer.size()};
        }
    }
    if (count == 0) {
        return std::size_t{0};  // kMaxPieces is never reached by empty buffers
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    for (;;) {
        const ssize_t sent = ::sendmsg(descriptor_, &message, MSG_NOSIGNAL | flags);
        if (sent >= 0) {
            return static_cast<std::size_t>(sent);
        }
        if ((flags & MSG_DONTWAIT) != 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return std::size_t{0};
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return Error{ErrorCode::timed_out, fmt::format("{} accepted no data in time", peer_)};
        }
        if (errno != EINTR) {
            return failure("send", errno);
        }
    }
}

Result<std::size_t> TcpConnection::send_some(std::span<const ConstBuffer> buffers) {
    return send_once(buffers, 0, MSG_DONTWAIT);
}

Status TcpConnection::send(std::span<const ConstBuffer> buffers) {
    std::size_t done_bytes = 0;  // of buffers.front()
    while (!buffers.empty()) {
        const auto sent = send_once(buffers, done_bytes, 0);
        if (!sent) {
            return sent.error();
        }
        if (*sent == 0) {
            return {};
        }
        done_bytes += *sent;
        while (!buffers.empty() && done_bytes >= buffers.front().size()) {
            done_bytes -= buffers.front().size();
            buffers = buffers.subspan(1);
        }
    }
    return {};
}

std::size_t TcpConnection::unsent_bytes() const noexcept {
    int bytes = 0;
    return ::ioctl(descriptor_, SIOCOUTQNSD, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

void TcpConnection::set_send_timeout(std::chrono::milliseconds timeout) noexcept {
    const timeval limit{timeout.count() / 1000, timeout.count() % 1000 * 1000};
    // The option belongs to the socket, so it also applies in a process that takes the socket over, until that sets its
    // own.
    (void)::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

Clock::time_point TcpConnection::next_check() const {
    return Clock::now() + answer_timeout_ / kChecks;
}

// True if the peer's host does not respond for answer_timeout_. A live host acknowledges data or answers probes even if
// its application reads nothing.
bool TcpConnection::vanished() noexcept {
    tcp_info info{};
    socklen_t bytes = sizeof(info);
    if (::getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
        return false;  // not TCP
    }
    const bool unanswered = (info.tcpi_unacked != 0 && info.tcpi_retransmits != 0) || info.tcpi_probes != 0;
    const auto now = Clock::now();
    const Clock::rep since = unanswered_since_.load(std::memory_order_relaxed);
    if (!unanswered || since == 0) {
        unanswered_since_.store(unanswered ? now.time_since_epoch().count() : 0, std::memory_order_relaxed);
        return false;
    }
    return now.time_since_epoch() - Clock::duration(since) > answer_timeout_;
}

Status TcpConnection::wait_readable() {
    for (;;) {
        pollfd entry{descriptor_, POLLIN, 0};
        const int ready = ::poll(&entry, 1, poll_timeout_ms(std::min(deadline_, next_check())));
        if (ready > 0) {
            unanswered_since_.store(0, std::memory_order_relaxed);  // the peer responds
            return {};
        }
        if (ready < 0 && errno != EINTR) {
            return failure("poll", errno);
        }
        if (Clock::now() >= deadline_) {
            return Error{ErrorCode::timed_out, fmt::format("{} sent nothing in time", peer_)};
        }
        if (vanished()) {
            return failure("receive", ETIMEDOUT);
        }
    }
}

// Returns zero bytes if `flags` forbid blocking and nothing has arrived.
Result<std::size_t> TcpConnection::receive_now(MutableBuffer buffer, int flags) {
    for (;;) {
        const ssize_t received = ::recv(descriptor_, buffer.data(), buffer.size(), flags);
        // Data that arrived before this side's shutdown is still readable, but the reader has been asked to stop.
        if (shut_down_.load(std::memory_order_acquire)) {
            return failure("receive", 0);
        }
        if (received > 0) {
            return static_cast<std::size_t>(received);
        }
        if (received == 0) {
            return Error{ErrorCode::closed, fmt::format("{} closed the connection", peer_)};
        }
        if ((flags & MSG_DONTWAIT) != 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return std::size_t{0};
        }
        if (errno != EINTR) {
            return failure("receive", errno);
        }
    }
}

Result<std::size_t> TcpConnection::receive_with_timeout(MutableBuffer buffer) {
    GPUPOOL_TRY(wait_readable());
    return receive_now(buffer, 0);
}

Result<std::size_t> TcpConnection::receive(MutableBuffer buffer) {
    if (deadline_ != kNoDeadline) {
        return receive_with_timeout(buffer);
    }
    Result<std::size_t> received = std::size_t{0};
    const auto ready = [&] {
        received = receive_some(buffer);
        return !received || *received != 0;
    };
    return spin_.until(ready) ? received : receive_with_timeout(buffer);
}

Result<std::size_t> TcpConnection::receive_some(MutableBuffer buffer) {
    return receive_now(buffer, MSG_DONTWAIT);
}

std::size_t TcpConnection::arrived_bytes() const noexcept {
    std::byte first;
    const ssize_t peeked = ::recv(descriptor_, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (peeked < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    int bytes = 0;
    const bool counted = peeked > 0 && ::ioctl(descriptor_, FIONREAD, &bytes) == 0 && bytes > 0;
    return counted ? static_cast<std::size_t>(bytes) : 1;
}

Status TcpConnection::wait_arrival() {
    if (reader_yield_.spin([&] { return arrived_bytes() != 0; })) {
        return {};
    }
    reader_yield_.fall_asleep([&](bool alone) {
        watches_ = alone;
        return true;
    });
    // Beside a polling thread, the reader is woken by the end of the connection but not by data.
    std::array entries{pollfd{descriptor_, static_cast<short>(watches_ ? POLLIN : 0), 0},
                       pollfd{reader_yield_.wake_descriptor(), POLLIN, 0}};
    const auto until = std::min(deadline_, watches_ ? next_check() : Clock::now() + ReaderYield::kMaxYield);
    const int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(until));
    const int problem = errno;
    if (entries[1].revents != 0) {
        reader_yield_.woken();
    }
    reader_yield_.wake_up([] {});
    if (ready < 0 && problem != EINTR) {
        return failure("poll", problem);
    }
    if (entries[0].revents != 0) {
        unanswered_since_.store(0, std::memory_order_relaxed);  // the peer responds
    }
    if (Clock::now() >= deadline_) {
        return Error{ErrorCode::timed_out, fmt::format("{} sent nothing in time", peer_)};
    }
    if (ready == 0 && vanished()) {
        return failure("receive", ETIMEDOUT);
    }
    return {};
}

void TcpConnection::end_polling() noexcept {
    reader_yield_.end([&] { return watches_; });
}

void TcpConnection::shutdown() noexcept {
    shut_down_.store(true, std::memory_order_release);
    (void)::shutdown(descriptor_, SHUT_RDWR);
}

}  // namespace gpupool::transport::tcp
