#include "protocol/transport/tcp/listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>

#include "protocol/transport/tcp/addresses.h"
#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::seconds kResolveTimeout{10};

class TcpListener final : public Listener {
  public:
    TcpListener(int descriptor, std::string address) : descriptor_(descriptor), address_(std::move(address)) {}
    ~TcpListener() override { ::close(descriptor_); }

    Result<std::unique_ptr<Connection>> accept_now() override;
    [[nodiscard]] int native_handle() const noexcept override { return descriptor_; }
    // On Linux a listening socket that is shut down becomes readable.
    void shutdown() noexcept override {
        shut_down_.store(true, std::memory_order_release);
        (void)::shutdown(descriptor_, SHUT_RDWR);
    }
    [[nodiscard]] std::string address() const override { return address_; }

  private:
    const int descriptor_;
    const std::string address_;
    std::atomic<bool> shut_down_{false};
};

Result<std::unique_ptr<Connection>> TcpListener::accept_now() {
    for (;;) {
        const int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
        const int error = errno;
        if (shut_down_.load(std::memory_order_acquire)) {
            if (descriptor >= 0) {
                ::close(descriptor);
            }
            return Error{ErrorCode::closed, "the listener was closed"};
        }
        if (descriptor >= 0) {
            auto connection = adopt(descriptor);
            if (connection) {
                return connection;
            }
            continue;  // the client closed it before it was accepted
        }
        if (error == EAGAIN || error == EWOULDBLOCK) {
            return std::unique_ptr<Connection>();
        }
        if (const auto failure = accept_failure(error)) {
            return *failure;
        }
    }
}

Result<int> bind_one(const Address& address) {
    const int descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        return system_error("socket", errno);
    }
    const int on = 1;
    const int off = 0;
    (void)::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // "[::]" serves IPv4 clients as well, regardless of the system's default.
    if (address.family() == AF_INET6) {
        (void)::setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (::bind(descriptor, address.get(), address.bytes) != 0 || ::listen(descriptor, kBacklog) != 0) {
        const auto error = system_error("bind", errno);
        ::close(descriptor);
        return error;
    }
    return descriptor;
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) {
    const std::string what = fmt::format("cannot listen on {}", endpoint.to_string());
    auto addresses = resolve(endpoint, Clock::now() + kResolveTimeout);
    if (!addresses) {
        return addresses.error().within(what);
    }
    std::string reasons;
    for (const auto& address : *addresses) {
        auto descriptor = bind_one(address);
        if (!descriptor) {
            reasons +=
                fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", address.to_string(), descriptor.error().message);
            continue;
        }
        auto local = local_address(*descriptor);
        if (!local) {
            ::close(*descriptor);
            return local.error().within(what);
        }
        return std::unique_ptr<Listener>(std::make_unique<TcpListener>(*descriptor, local->to_string()));
    }
    return Error{ErrorCode::unavailable, fmt::format("{} ({})", what, reasons)};
}

}  // namespace gpupool::transport::tcp
