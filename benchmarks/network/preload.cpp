// libgpupool_network.so: emulates a network between two processes on one machine, for benchmarks. Preload it into both:
//
//   LD_PRELOAD=libgpupool_network.so GPUPOOL_EMULATED_NETWORK=100us,25gbit PROGRAM
//
// Data that the process sends over TCP leaves it as if over such a network: half of the round trip later, and at no
// more than that rate, which all of its connections share (link.h). The other process emulates the way back. A new
// connection takes a round trip.
//
// There is no proxy, whose two hops would take more of the machine's time than a fast network does. Sent data is copied
// once more, and one thread per sending connection forwards it.
//
// Not emulated: loss, reordering, jitter and congestion; TCP's slow start; packet headers. Data that has not been
// forwarded when a process ends without closing its connections is lost.
//
// It interposes sendmsg(), connect(), shutdown() and close(), and ioctl(SIOCOUTQNSD), which returns the unsent bytes.
// It ignores descriptors that are no TCP sockets. It handles no other way to send than sendmsg(), the only one that
// gpupool uses.
//
// Threads: any, as with the interposed calls, except that close() must be the last call for a descriptor. Errors: those
// of the interposed calls.
#include <dlfcn.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "benchmarks/network/link.h"
#include "benchmarks/network/parameters.h"

#define GPUPOOL_INTERPOSED extern "C" __attribute__((visibility("default")))

namespace gpupool::network {
namespace {

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// How long a close waits for data in flight.
constexpr std::chrono::seconds kTimeout{1};

// The program's real socket: the emulated link delivers data to it when its time has come.
class Socket final : public transport::Connection {
  public:
    explicit Socket(int descriptor) : descriptor_(descriptor) {}

    Status send(std::span<const transport::ConstBuffer> buffers) override {
        static auto* const send = next<decltype(::send)>("send");
        for (const transport::ConstBuffer& buffer : buffers) {
            for (std::size_t done = 0; done < buffer.size();) {
                const ssize_t sent = send(descriptor_, buffer.data() + done, buffer.size() - done, MSG_NOSIGNAL);
                if (sent < 0 && errno != EINTR) {
                    return Error{ErrorCode::system, std::strerror(errno)};
                }
                done += sent < 0 ? 0 : static_cast<std::size_t>(sent);
            }
        }
        return {};
    }
    Result<std::size_t> receive(transport::MutableBuffer) override { return Error{ErrorCode::closed, "it only sends"}; }
    void set_receive_deadline(Clock::time_point) noexcept override {}
    void shutdown() noexcept override {}
    [[nodiscard]] std::string peer() const override { return "the other side"; }

  private:
    const int descriptor_;
};

// One connection's path to the peer.
struct Way {
    Way(Link& link, int descriptor) : socket(descriptor), path(link, socket, traffic) {}
    std::mutex sending;
    Traffic traffic;
    Socket socket;
    Path path;
};

class Network {
  public:
    // Null when no network is configured. Lives as long as the process, because its threads do.
    static Network* get() {
        static Network* const network = make();
        return network;
    }

    // Null when the descriptor is no TCP socket.
    Way* way(int descriptor) {
        if (!is_in_range(descriptor) || ::getpid() != owner_) {
            return nullptr;
        }
        if (Way* const there = ways_[index(descriptor)].load(std::memory_order_acquire)) {
            return there;
        }
        if (!is_tcp(descriptor)) {
            return nullptr;
        }
        const std::lock_guard lock(mutex_);
        std::atomic<Way*>& way = ways_[index(descriptor)];
        if (way.load(std::memory_order_relaxed) == nullptr) {
            way.store(new Way(link_, descriptor), std::memory_order_release);
        }
        return way.load(std::memory_order_relaxed);
    }
    // Ends a connection once its data in flight is delivered. `forget`: the descriptor may be reused from now on.
    void finish(int descriptor, bool forget) {
        if (!is_in_range(descriptor) || ways_[index(descriptor)].load() == nullptr || ::getpid() != owner_) {
            return;  // in a forked child the connections belong to the parent
        }
        std::atomic<Way*>& place = ways_[index(descriptor)];
        Way* const way = forget ? place.exchange(nullptr) : place.load();
        if (way == nullptr) {
            return;
        }
        const bool delivered = way->path.wait_delivered(Clock::now() + kTimeout);
        if (forget) {
            if (!delivered) {
                static auto* const shut = next<decltype(::shutdown)>("shutdown");
                shut(descriptor, SHUT_RDWR);  // stops the delivery to a peer that does not read
            }
            delete way;
        }
    }
    [[nodiscard]] std::chrono::nanoseconds round_trip() const { return round_trip_; }
    static bool is_tcp(int descriptor) {
        int domain = 0, type = 0;
        socklen_t bytes = sizeof domain;
        if (::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 ||
            (domain != AF_INET && domain != AF_INET6)) {
            return false;
        }
        bytes = sizeof type;
        return ::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM;
    }

  private:
    static constexpr std::size_t kMaxDescriptors = 1u << 16;

    Network(std::chrono::nanoseconds round_trip, double bytes_per_s)
        : round_trip_(round_trip), link_(round_trip / 2, bytes_per_s) {}

    static Network* make() {
        const char* const given = std::getenv("GPUPOOL_EMULATED_NETWORK");
        if (given == nullptr) {
            return nullptr;
        }
        const std::string text = given;
        const std::size_t comma = text.find(',');
        const auto round_trip_s = seconds(text.substr(0, comma));
        const auto rate = comma == std::string::npos ? std::optional<double>(0) : bytes_per_s(text.substr(comma + 1));
        if (!round_trip_s || !rate) {
            std::fprintf(stderr, "GPUPOOL_EMULATED_NETWORK: '%s' is not a network like 100us,25gbit\n", given);
            std::_Exit(2);
        }
        return new Network(std::chrono::nanoseconds(static_cast<std::int64_t>(*round_trip_s * 1e9)), *rate);
    }
    static bool is_in_range(int descriptor) {
        return descriptor >= 0 && static_cast<std::size_t>(descriptor) < kMaxDescriptors;
    }
    static std::size_t index(int descriptor) { return static_cast<std::size_t>(descriptor); }

    const pid_t owner_ = ::getpid();
    const std::chrono::nanoseconds round_trip_;
    Link link_;
    std::mutex mutex_;  // held to create a Way
    std::array<std::atomic<Way*>, kMaxDescriptors> ways_{};
};

// Sends as much of the message as there is room for; unless `now`, blocks until there is room for all. 0: no room.
Result<std::size_t> put(Way& way, const msghdr& message, bool now) {
    std::unique_lock lock(way.sending, std::defer_lock);
    if (now && !lock.try_lock()) {
        return std::size_t{0};  // another thread waits for room
    }
    if (!now) {
        lock.lock();
    }
    std::size_t sent = 0;
    transport::MutableBuffer room;
    std::size_t filled = 0;
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
        const auto* from = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
        for (std::size_t left = message.msg_iov[i].iov_len; left != 0;) {
            if (filled == room.size()) {
                if (filled != 0) {
                    way.path.push(filled);
                    sent += filled;
                    filled = 0;
                }
                if (now && !way.path.has_room()) {
                    return sent;
                }
                const auto more = way.path.room();
                if (!more) {
                    return more.error();
                }
                room = *more;
            }
            const std::size_t bytes = std::min(left, room.size() - filled);
            std::memcpy(room.data() + filled, from, bytes);
            filled += bytes;
            from += bytes;
            left -= bytes;
        }
    }
    if (filled != 0) {
        way.path.push(filled);
        sent += filled;
    }
    return sent;
}

}  // namespace
}  // namespace gpupool::network

using gpupool::network::Network;

GPUPOOL_INTERPOSED ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
    static auto* const real = gpupool::network::next<decltype(::sendmsg)>("sendmsg");
    Network* const network = Network::get();
    gpupool::network::Way* const way = network == nullptr ? nullptr : network->way(descriptor);
    if (way == nullptr) {
        return real(descriptor, message, flags);
    }
    const bool now = (flags & MSG_DONTWAIT) != 0;
    const auto sent = gpupool::network::put(*way, *message, now);
    if (!sent) {
        errno = EPIPE;
        return -1;
    }
    if (*sent == 0 && now) {
        errno = EAGAIN;
        return -1;
    }
    return static_cast<ssize_t>(*sent);
}

GPUPOOL_INTERPOSED int connect(int descriptor, const sockaddr* address, socklen_t bytes) {
    static auto* const real = gpupool::network::next<decltype(::connect)>("connect");
    if (Network* const network = Network::get(); network != nullptr && Network::is_tcp(descriptor)) {
        const auto round_trip_ns = network->round_trip().count();
        const timespec pause{round_trip_ns / 1'000'000'000, round_trip_ns % 1'000'000'000};
        ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
    }
    return real(descriptor, address, bytes);
}

GPUPOOL_INTERPOSED int ioctl(int descriptor, unsigned long request, ...) {
    static auto* const real = gpupool::network::next<int(int, unsigned long, void*)>("ioctl");
    va_list arguments;
    va_start(arguments, request);
    void* const argument = va_arg(arguments, void*);  // the argument's type in the C library
    va_end(arguments);
    Network* const network = request == SIOCOUTQNSD ? Network::get() : nullptr;
    gpupool::network::Way* const way = network == nullptr ? nullptr : network->way(descriptor);
    if (way == nullptr) {
        return real(descriptor, request, argument);
    }
    *static_cast<int*>(argument) = static_cast<int>(way->path.unsent_bytes());
    return 0;
}

GPUPOOL_INTERPOSED int shutdown(int descriptor, int how) {
    static auto* const real = gpupool::network::next<decltype(::shutdown)>("shutdown");
    if (Network* const network = Network::get()) {
        network->finish(descriptor, false);
    }
    return real(descriptor, how);
}

GPUPOOL_INTERPOSED int close(int descriptor) {
    static auto* const real = gpupool::network::next<decltype(::close)>("close");
    if (Network* const network = Network::get()) {
        network->finish(descriptor, true);
    }
    return real(descriptor);
}
