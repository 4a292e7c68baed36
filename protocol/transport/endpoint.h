// A server's address, as users write it: "tcp://HOST:PORT", "HOST:PORT", "[IPV6]:PORT", "unix:/PATH".
//
// Ownership: values. Threads: any. Errors: `invalid_input`, with the text and what is expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool::transport {

// Where a server listens and a client connects by default.
inline constexpr std::uint16_t kDefaultPort = 9470;
inline constexpr const char* kDefaultAddress = "127.0.0.1:9470";

struct Endpoint {
    std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
    std::uint16_t port = 0;
    std::string path{};  // of a Unix socket; host and port are then unused

    // Without `default_port` the text must contain a port. Port 0 is allowed: a listener then picks a free one.
    static Result<Endpoint> parse(std::string_view text, std::optional<std::uint16_t> default_port = std::nullopt);

    [[nodiscard]] bool is_path() const { return !path.empty(); }

    // "HOST:PORT", an IPv6 address in brackets; "unix:/PATH".
    [[nodiscard]] std::string to_string() const;
};

}  // namespace gpupool::transport
