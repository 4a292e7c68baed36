#include "protocol/transport/open.h"

#include <fmt/format.h>

#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/connector.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"

namespace gpupool::transport {
namespace {

bool is_any(const std::string& host) {
    return host == "0.0.0.0" || host == "::";
}

bool is_loopback(const std::string& host) {
    return host.starts_with("127.") || host == "::1" || host == "localhost";
}

// One name for a server at all addresses, whichever of them its clients use.
std::string local_name(const std::string& host, std::uint16_t port) {
    return "gpupool/" + (is_any(host) ? fmt::format("*:{}", port) : Endpoint{host, port}.to_string());
}

// Where a server that a client calls `endpoint` may be found on this host.
std::vector<std::string> local_names(const Endpoint& endpoint) {
    if (!is_loopback(endpoint.host)) return {};
    std::vector<std::string> names;
    if (endpoint.host == "localhost") {
        names = {local_name("::1", endpoint.port), local_name("127.0.0.1", endpoint.port)};
    } else {
        names = {local_name(endpoint.host, endpoint.port)};
    }
    names.push_back(local_name("0.0.0.0", endpoint.port));
    return names;
}

Result<std::unique_ptr<Connection>> connect_locally(const Endpoint& endpoint) {
    Result<std::unique_ptr<Connection>> connection = Error{
        ErrorCode::unavailable,
        fmt::format("shared memory needs a server on this host, which {} is not known to be", endpoint.to_string())};
    for (const auto& name : local_names(endpoint)) {
        connection = shm::connect_to_name(name);
        if (connection) return connection;
    }
    return connection;
}

}  // namespace

Result<Choice> parse_choice(std::string_view text) {
    if (text == "auto") return Choice::automatic;
    if (text == "tcp") return Choice::tcp;
    if (text == "shm") return Choice::shm;
    return Error{ErrorCode::invalid_input, fmt::format("'{}' is none of auto, tcp and shm", text)};
}

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Choice choice, Clock::time_point deadline) {
    if (endpoint.is_path()) {
        if (choice != Choice::tcp) return shm::connect_to_path(endpoint.path);
        return Error{
            ErrorCode::invalid_input,
            fmt::format("{} is reached over shared memory, which the transport tcp excludes", endpoint.to_string())};
    }
    if (choice != Choice::tcp) {
        auto connection = connect_locally(endpoint);
        if (connection || choice == Choice::shm) return connection;
    }
    return tcp::connect(endpoint, deadline);
}

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) {
    return endpoint.is_path() ? shm::listen_at_path(endpoint.path) : tcp::listen(endpoint);
}

Result<std::unique_ptr<Listener>> listen_beside(const Endpoint& tcp_address) {
    if (tcp_address.is_path() || (!is_any(tcp_address.host) && !is_loopback(tcp_address.host))) {
        return std::unique_ptr<Listener>();
    }
    return shm::listen_at_name(local_name(tcp_address.host, tcp_address.port));
}

Result<std::unique_ptr<Connection>> adopt(std::vector<UniqueFd> descriptors) {
    return descriptors.size() == 1 ? tcp::adopt(descriptors.front().release()) : shm::adopt(std::move(descriptors));
}

}  // namespace gpupool::transport
