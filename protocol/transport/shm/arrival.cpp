#include "protocol/transport/shm/arrival.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/local_socket.h"

namespace gpupool::transport::shm {

// Called with mutex_ held, when the greeting can be read.
Status Arrival::take_memory() {
    std::array<std::byte, kGreeting.size()> greeting;
    auto descriptors = receive_with_descriptors(socket_.get(), greeting);
    if (!descriptors) {
        return descriptors.error();
    }
    if (greeting != kGreeting || descriptors->size() != 3) {
        return Error{
            ErrorCode::invalid_input,
            fmt::format("{} did not send shared memory in a form that this version of gpupool supports", peer_)};
    }
    std::vector<UniqueFd> all;
    all.push_back(std::move(socket_));
    for (auto& descriptor : *descriptors) {
        all.push_back(std::move(descriptor));
    }
    auto made = begin(std::move(all));
    if (!made) {
        return made.error();
    }
    made_ = std::move(*made);
    return {};
}

Result<Connection*> Arrival::inner(Clock::time_point deadline) {
    if (Connection* const ready = ready_.load(std::memory_order_acquire)) {
        return ready;
    }
    // Only one thread waits for the greeting: a second one would poll the socket until a wake-up byte arrives that is
    // meant for another thread.
    const Lock alone(greeting_);
    if (Connection* const ready = ready_.load(std::memory_order_acquire)) {
        return ready;
    }
    for (;;) {
        const int socket = native_handle();
        if (socket < 0) {
            return Error{ErrorCode::closed, fmt::format("{} has been given up", peer_)};
        }
        pollfd entry{socket, POLLIN, 0};
        const int came = ::poll(&entry, 1, poll_timeout_ms(deadline));
        if (came < 0 && errno == EINTR) {
            continue;
        }
        if (came < 0) {
            return system_error("poll", errno);
        }
        const Lock lock(mutex_);
        if (shut_down_) {
            return Error{ErrorCode::closed, "the connection was closed"};
        }
        if (came == 0) {
            return Error{ErrorCode::timed_out, fmt::format("{} sent nothing in time", peer_)};
        }
        if (!socket_) {
            continue;
        }
        if (auto taken = take_memory(); !taken) {
            socket_.reset();
            return taken.error();
        }
        ready_.store(made_.get(), std::memory_order_release);
        return made_.get();
    }
}

Status Arrival::send(std::span<const ConstBuffer> buffers) {
    const auto connection = inner(Clock::now());
    if (!connection) {
        return connection.error();
    }
    (*connection)->set_send_timeout(send_timeout_);
    return (*connection)->send(buffers);
}

Result<std::size_t> Arrival::send_some(std::span<const ConstBuffer> buffers) {
    const auto connection = inner(Clock::now());
    if (!connection) {
        return connection.error();
    }
    return (*connection)->send_some(buffers);
}

Result<std::size_t> Arrival::receive(MutableBuffer buffer) {
    const auto connection = inner(deadline_);
    if (!connection) {
        return connection.error();
    }
    (*connection)->set_receive_deadline(deadline_);
    return (*connection)->receive(buffer);
}

Result<std::size_t> Arrival::receive_some(MutableBuffer buffer) {
    const auto connection = inner(Clock::now());
    if (!connection) {
        return connection.error().code == ErrorCode::timed_out ? Result<std::size_t>(std::size_t{0})
                                                               : connection.error();
    }
    return (*connection)->receive_some(buffer);
}

// The socket that brings the memory is later the connection's first, with the same number.
Result<Connection::Readiness> Arrival::receive_readiness() {
    if (Connection* const ready = ready_.load(std::memory_order_acquire)) {
        return ready->receive_readiness();
    }
    return Readiness{native_handle(), false};
}

Result<Connection::Readiness> Arrival::send_readiness() {
    const auto connection = inner(Clock::now());
    if (!connection) {
        return connection.error();
    }
    return (*connection)->send_readiness();
}

void Arrival::set_receive_deadline(Clock::time_point deadline) noexcept {
    deadline_ = deadline;
}

void Arrival::set_send_timeout(std::chrono::milliseconds timeout) noexcept {
    send_timeout_ = timeout;
}

void Arrival::shutdown() noexcept {
    const Lock lock(mutex_);
    shut_down_ = true;
    if (made_) {
        made_->shutdown();
    } else if (socket_) {
        (void)::shutdown(socket_.get(), SHUT_RDWR);
    }
}

int Arrival::native_handle() const noexcept {
    const Lock lock(mutex_);
    return made_ ? made_->native_handle() : socket_.get();
}

std::vector<int> Arrival::descriptors() const {
    const Lock lock(mutex_);
    return made_ ? made_->descriptors() : std::vector<int>{};
}

}  // namespace gpupool::transport::shm
