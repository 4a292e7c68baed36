#include "protocol/transport/tcp/addresses.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>

#include "common/mutex.h"
#include "common/quiet_thread.h"

namespace gpupool::transport::tcp {
namespace {

// The addresses of `endpoint`; on failure the error's text. AI_NUMERICHOST in `flags` asks no name service.
std::string look_up(const Endpoint& endpoint, int flags, std::vector<Address>& addresses) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* first = nullptr;
    const std::string port = std::to_string(endpoint.port);
    const int failure = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &first);
    if (failure != 0) {
        return failure == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failure);
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
    for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
        Address& address = addresses.emplace_back();
        std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
        address.bytes = one->ai_addrlen;
    }
    return {};
}

struct Lookup {
    Mutex mutex;
    Condition finished_changed;
    bool finished GP_GUARDED_BY(mutex) = false;
    std::vector<Address> addresses GP_GUARDED_BY(mutex);
    std::string failure GP_GUARDED_BY(mutex);
};

Result<Address> name_of(int descriptor, int (*query)(int, sockaddr*, socklen_t*), const char* operation) {
    Address address;
    address.bytes = sizeof(address.storage);
    if (query(descriptor, address.get(), &address.bytes) != 0) {
        return system_error(operation, errno);
    }
    return address;
}

}  // namespace

std::string Address::to_string() const {
    if (family() != AF_INET && family() != AF_INET6) {
        return "local";
    }
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    (void)::getnameinfo(get(), bytes, host.data(), host.size(), port.data(), port.size(),
                        NI_NUMERICHOST | NI_NUMERICSERV);
    return family() == AF_INET6 ? fmt::format("[{}]:{}", host.data(), port.data())
                                : fmt::format("{}:{}", host.data(), port.data());
}

Result<std::vector<Address>> resolve(const Endpoint& endpoint, Clock::time_point deadline) {
    std::vector<Address> literal;
    if (look_up(endpoint, AI_NUMERICHOST, literal).empty() && !literal.empty()) {
        return literal;
    }

    // The system's resolver cannot be interrupted and may take far longer than the caller can wait. So it runs in a
    // thread that may outlive this call and accesses only `lookup`, which it shares.
    auto lookup = std::make_shared<Lookup>();
    quiet_thread("gpupool-resolve", [endpoint, lookup] {
        std::vector<Address> addresses;
        std::string failure = look_up(endpoint, 0, addresses);
        const Lock lock(lookup->mutex);
        lookup->addresses = std::move(addresses);
        lookup->failure = std::move(failure);
        lookup->finished = true;
        lookup->finished_changed.notify_all();
    }).detach();

    UniqueLock lock(lookup->mutex);
    const auto finished = [&]() GP_REQUIRES(lookup->mutex) { return lookup->finished; };
    if (deadline == kNoDeadline) {
        lookup->finished_changed.wait(lock, finished);
    } else if (!lookup->finished_changed.wait_until(lock, deadline, finished)) {
        return Error{ErrorCode::unresolved,
                     fmt::format("looking up the host name \"{}\" took too long", endpoint.host)};
    }
    if (lookup->addresses.empty()) {
        return Error{ErrorCode::unresolved, fmt::format("the host name \"{}\" cannot be resolved: {}", endpoint.host,
                                                        lookup->failure.empty() ? "no addresses" : lookup->failure)};
    }
    return std::move(lookup->addresses);
}

bool is_own(const Address& address) {
    const auto host_of = [](const sockaddr* given) -> std::string_view {
        if (given->sa_family == AF_INET) {
            return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(given)->sin_addr), 4};
        }
        if (given->sa_family == AF_INET6) {
            return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6*>(given)->sin6_addr), 16};
        }
        return {};
    };
    const std::string_view host = host_of(address.get());
    constexpr char kLoopbackNet = 127;  // the whole net is local, although an interface lists only one address of it
    if (host.empty()) {
        return false;
    }
    if (host.size() == 4 && host.front() == kLoopbackNet) {
        return true;
    }
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0) {
        return false;
    }
    bool found = false;
    for (const ifaddrs* one = first; one != nullptr && !found; one = one->ifa_next) {
        found = one->ifa_addr != nullptr && host_of(one->ifa_addr) == host;
    }
    ::freeifaddrs(first);
    return found;
}

Result<Address> local_address(int descriptor) {
    return name_of(descriptor, &::getsockname, "getsockname");
}

Result<Address> peer_address(int descriptor) {
    return name_of(descriptor, &::getpeername, "getpeername");
}

}  // namespace gpupool::transport::tcp
