#include "protocol/transport/endpoint.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>

namespace gpupool::transport {
namespace {

constexpr std::size_t kMaxTextBytes = 512;
constexpr std::size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::size_t kMaxHostBytes = 253;  // of a DNS name

Error malformed(std::string_view text, std::string_view reason) {
    return {
        ErrorCode::invalid_input,
        fmt::format("\"{}\" is not a server address: {} (expected HOST:PORT, for example 127.0.0.1:9470 or [::1]:9470, "
                    "or unix:/PATH)",
                    text.substr(0, 80), reason)};
}

bool is_host_character(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' ||
           c == '_';
}

bool is_ipv6_character(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == ':' || c == '.';
}

// "fe80::1%eth0": the zone names an interface.
bool is_ipv6(std::string_view host) {
    const auto zone = host.find('%');
    const auto address = host.substr(0, zone);
    if (zone != host.npos &&
        (zone + 1 == host.size() || !std::ranges::all_of(host.substr(zone + 1), is_host_character))) {
        return false;
    }
    return address.find(':') != address.npos && std::ranges::all_of(address, is_ipv6_character);
}

}  // namespace

Result<Endpoint> Endpoint::parse(std::string_view text, std::optional<std::uint16_t> default_port) {
    if (text.size() > kMaxTextBytes) {
        return malformed(text, "it is too long");
    }
    std::string_view rest = text;
    constexpr std::string_view kPath = "unix:";
    if (rest.starts_with(kPath)) {
        rest.remove_prefix(kPath.size());
        if (!rest.starts_with('/')) {
            return malformed(text, "after unix: an absolute path must follow");
        }
        if (rest.find('\0') != rest.npos) {
            return malformed(text, "the path contains a NUL character");
        }
        if (rest.size() > kMaxPathBytes) {
            return malformed(text, "the path is too long for a socket");
        }
        return Endpoint{{}, 0, std::string(rest)};
    }
    if (const auto scheme = rest.find("://"); scheme != rest.npos) {
        if (rest.substr(0, scheme) != "tcp") {
            return malformed(text, fmt::format("the transport \"{}\" is not known, only tcp", rest.substr(0, scheme)));
        }
        rest.remove_prefix(scheme + 3);
    }
    if (rest.empty()) {
        return malformed(text, "it is empty");
    }

    std::string_view host;
    if (rest.front() == '[') {
        const auto end = rest.find(']');
        if (end == rest.npos) {
            return malformed(text, "the closing ] is missing");
        }
        host = rest.substr(1, end - 1);
        rest.remove_prefix(end + 1);
        if (!is_ipv6(host)) {
            return malformed(text, "the text in brackets is not an IPv6 address");
        }
        if (!rest.empty() && rest.front() != ':') {
            return malformed(text, "after ] only :PORT may follow");
        }
    } else {
        if (std::ranges::count(rest, ':') > 1) {
            return malformed(text, "an IPv6 address is written in brackets");
        }
        host = rest.substr(0, rest.find(':'));
        rest.remove_prefix(host.size());
        if (host.empty()) {
            return malformed(text, "the host is missing (0.0.0.0 and [::] mean every interface)");
        }
        if (!std::ranges::all_of(host, is_host_character)) {
            return malformed(text, "the host contains an invalid character");
        }
    }
    if (host.size() > kMaxHostBytes) {
        return malformed(text, "the host is too long");
    }

    if (rest.empty()) {
        if (!default_port) {
            return malformed(text, "the port is missing");
        }
        return Endpoint{std::string(host), *default_port};
    }
    rest.remove_prefix(1);
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), port);
    if (error != std::errc() || end != rest.data() + rest.size() || rest.empty()) {
        return malformed(text, "the port must be a number from 0 to 65535");
    }
    return Endpoint{std::string(host), port};
}

std::string Endpoint::to_string() const {
    if (is_path()) {
        return "unix:" + path;
    }
    const bool brackets = host.find(':') != std::string::npos;
    return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace gpupool::transport
