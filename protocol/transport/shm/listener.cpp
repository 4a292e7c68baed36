#include "protocol/transport/shm/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "common/unique_fd.h"
#include "protocol/transport/shm/arrival.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/local_socket.h"

namespace gpupool::transport::shm {
namespace {

constexpr int kBacklog = 128;

// A socket's file. Removed by the destructor, unless another file has taken its place.
class SocketFile {
  public:
    SocketFile() = default;
    explicit SocketFile(std::string path) : path_(std::move(path)) {
        if (::stat(path_.c_str(), &facts_) != 0) {
            path_.clear();
        }
    }
    ~SocketFile() {
        struct stat now {};
        if (!path_.empty() && ::stat(path_.c_str(), &now) == 0 && now.st_dev == facts_.st_dev &&
            now.st_ino == facts_.st_ino) {
            ::unlink(path_.c_str());
        }
    }
    SocketFile(SocketFile&& other) noexcept : path_(std::exchange(other.path_, {})), facts_(other.facts_) {}
    SocketFile& operator=(SocketFile&&) = delete;

  private:
    std::string path_;
    struct stat facts_ {};
};

class ShmListener final : public Listener {
  public:
    ShmListener(UniqueFd socket, SocketFile file, std::string address)
        : socket_(std::move(socket)), file_(std::move(file)), address_(std::move(address)) {}

    Result<std::unique_ptr<Connection>> accept_now() override;
    [[nodiscard]] int native_handle() const noexcept override { return socket_.get(); }
    // On Linux a listening socket that is shut down becomes readable.
    void shutdown() noexcept override {
        shut_down_.store(true, std::memory_order_release);
        (void)::shutdown(socket_.get(), SHUT_RDWR);
    }
    [[nodiscard]] std::string address() const override { return address_; }

  private:
    const UniqueFd socket_;
    const SocketFile file_;
    const std::string address_;
    std::atomic<bool> shut_down_{false};
};

Result<std::unique_ptr<Connection>> ShmListener::accept_now() {
    for (;;) {
        UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        const int error = errno;
        if (shut_down_.load(std::memory_order_acquire)) {
            return Error{ErrorCode::closed, "the listener was closed"};
        }
        if (socket) {
            auto peer = name_of_peer(socket.get());
            if (!peer) {
                continue;
            }
            return std::unique_ptr<Connection>(std::make_unique<Arrival>(std::move(socket), std::move(*peer)));
        }
        if (error == EAGAIN || error == EWOULDBLOCK) {
            return std::unique_ptr<Connection>();
        }
        if (const auto failure = accept_failure(error)) {
            return *failure;
        }
    }
}

Result<UniqueFd> bind_socket(const LocalAddress& address) {
    auto socket = open_socket();
    if (!socket) {
        return socket;
    }
    if (::bind(socket->get(), address.get(), address.bytes) != 0 || ::listen(socket->get(), kBacklog) != 0) {
        return Error{ErrorCode::unavailable, system_error("bind", errno).message};
    }
    return socket;
}

bool is_socket(const std::string& path) {
    struct stat facts {};
    return ::lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode);
}

}  // namespace

Result<std::unique_ptr<Listener>> listen_at_path(const std::string& path) {
    const std::string what = fmt::format("cannot listen on unix:{}", path);
    const auto address = LocalAddress::of_path(path);
    if (!address) {
        return address.error().within(what);
    }
    if (is_socket(path)) {
        if (connect_socket(*address)) {
            return Error{ErrorCode::unavailable, what + ": another process listens there"};
        }
        ::unlink(path.c_str());
    }
    auto socket = bind_socket(*address);
    if (!socket) {
        return socket.error().within(what);
    }
    return std::unique_ptr<Listener>(
        std::make_unique<ShmListener>(std::move(*socket), SocketFile(path), "unix:" + path));
}

Result<std::unique_ptr<Listener>> listen_at_name(const std::string& name) {
    const auto address = LocalAddress::abstract(name);
    if (!address) {
        return address.error();
    }
    auto socket = bind_socket(*address);
    if (!socket) {
        return socket.error().within(fmt::format("cannot listen at the local name {}", name));
    }
    return std::unique_ptr<Listener>(std::make_unique<ShmListener>(std::move(*socket), SocketFile(), "local:" + name));
}

}  // namespace gpupool::transport::shm
