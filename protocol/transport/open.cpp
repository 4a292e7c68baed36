#include "protocol/transport/open.h"

#include <fmt/format.h>

#include <span>

#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/connector.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/tcp/addresses.h"
#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"

namespace gpupool::transport {
namespace {

bool is_any(const std::string& host) {
    return host == "0.0.0.0" || host == "::";
}

// The name of a server that listens at all addresses, whichever of them its clients use.
std::string name_at_all(std::uint16_t port) {
    return fmt::format("gpupool/*:{}", port);
}

std::string name_at(const tcp::Address& address) {
    return "gpupool/" + address.to_string();
}

Result<std::unique_ptr<Connection>> connect_locally(const Endpoint& endpoint, std::span<const tcp::Address> addresses) {
    std::vector<std::string> names;
    for (const auto& address : addresses) {
        if (tcp::is_own(address)) {
            names.push_back(name_at(address));
        }
    }
    if (names.empty()) {
        return Error{
            ErrorCode::unsupported,
            fmt::format("shared memory needs a server on this host, but {} is on another host", endpoint.to_string())};
    }
    names.push_back(name_at_all(endpoint.port));
    std::string reasons;
    for (const auto& name : names) {
        auto connection = shm::connect_to_name(name);
        if (connection) {
            return connection;
        }
        reasons += (reasons.empty() ? "" : "; ") + connection.error().message;
    }
    return Error{ErrorCode::unsupported,
                 fmt::format("cannot share memory with {}: its gpupoold must run on this host, in this network name "
                             "space and without local = false; GPUPOOL_TRANSPORT=tcp uses TCP instead ({})",
                             endpoint.to_string(), reasons)};
}

}  // namespace

Result<Choice> parse_choice(std::string_view text) {
    if (text == "auto") {
        return Choice::automatic;
    }
    if (text == "tcp") {
        return Choice::tcp;
    }
    if (text == "shm") {
        return Choice::shm;
    }
    return Error{ErrorCode::invalid_input, fmt::format("'{}' is not a transport: auto, tcp or shm", text)};
}

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Choice choice, Clock::time_point deadline) {
    if (endpoint.is_path()) {
        if (choice != Choice::tcp) {
            return shm::connect_to_path(endpoint.path);
        }
        return Error{ErrorCode::invalid_input,
                     fmt::format("{} needs shared memory, which the setting tcp forbids", endpoint.to_string())};
    }
    const auto addresses = tcp::resolve(endpoint, deadline);
    if (!addresses) {
        return addresses.error().within(fmt::format("cannot connect to {}", endpoint.to_string()));
    }
    if (choice != Choice::tcp) {
        auto connection = connect_locally(endpoint, *addresses);
        if (connection || choice == Choice::shm) {
            return connection;
        }
    }
    return tcp::connect(endpoint, *addresses, deadline);
}

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) {
    return endpoint.is_path() ? shm::listen_at_path(endpoint.path) : tcp::listen(endpoint);
}

Result<std::unique_ptr<Listener>> listen_beside(const Endpoint& tcp_address) {
    if (tcp_address.is_path()) {
        return std::unique_ptr<Listener>();
    }
    if (is_any(tcp_address.host)) {
        return shm::listen_at_name(name_at_all(tcp_address.port));
    }
    const auto addresses = tcp::resolve(tcp_address, kNoDeadline);  // numeric: the listener is bound to it
    if (!addresses || !tcp::is_own(addresses->front())) {
        return std::unique_ptr<Listener>();
    }
    return shm::listen_at_name(name_at(addresses->front()));
}

Result<std::unique_ptr<Connection>> adopt(std::vector<UniqueFd> descriptors) {
    return descriptors.size() == 1 ? tcp::adopt(descriptors.front().release()) : shm::adopt(std::move(descriptors));
}

}  // namespace gpupool::transport
