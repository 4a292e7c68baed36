#include "protocol/transport/tcp/addresses.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "common/mutex.h"
#include "common/quiet_thread.h"

namespace gpupool::transport::tcp {
namespace {

using AsioEndpoint = asio::ip::tcp::endpoint;

Address from_asio(const AsioEndpoint& endpoint) {
    Address address;
    std::memcpy(&address.storage, endpoint.data(), endpoint.size());
    address.bytes = static_cast<socklen_t>(endpoint.size());
    return address;
}

struct Lookup {
    Mutex mutex;
    Condition finished_changed;
    bool finished GP_GUARDED_BY(mutex) = false;
    std::vector<Address> addresses GP_GUARDED_BY(mutex);
    std::string failure GP_GUARDED_BY(mutex);
};

void look_up(const Endpoint& endpoint, Lookup& lookup) {
    std::vector<Address> addresses;
    std::string failure;
    try {
        asio::io_context context;
        asio::ip::tcp::resolver resolver(context);
        asio::error_code error;
        const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                            asio::ip::tcp::resolver::numeric_service, error);
        for (const auto& entry : found) {
            addresses.push_back(from_asio(entry.endpoint()));
        }
        if (error) {
            failure = error.message();
        }
    } catch (const std::exception& exception) {  // out of descriptors or memory
        failure = exception.what();
    }
    const Lock lock(lookup.mutex);
    lookup.addresses = std::move(addresses);
    lookup.failure = std::move(failure);
    lookup.finished = true;
    lookup.finished_changed.notify_all();
}

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
    AsioEndpoint endpoint;
    std::memcpy(endpoint.data(), &storage, std::min<std::size_t>(bytes, endpoint.capacity()));
    const std::string host = endpoint.address().to_string();
    return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                      : fmt::format("{}:{}", host, endpoint.port());
}

Result<std::vector<Address>> resolve(const Endpoint& endpoint, Clock::time_point deadline) {
    asio::error_code error;
    const auto literal = asio::ip::make_address(endpoint.host, error);
    if (!error) {
        return std::vector{from_asio(AsioEndpoint(literal, endpoint.port))};
    }

    // The system's resolver cannot be interrupted and may take far longer than the caller can wait. So it runs in a
    // thread that may outlive this call and accesses only `lookup`, which it shares.
    auto lookup = std::make_shared<Lookup>();
    quiet_thread("gpupool-resolve", [endpoint, lookup] { look_up(endpoint, *lookup); }).detach();

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
