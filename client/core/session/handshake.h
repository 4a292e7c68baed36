// The client's side of the handshake: writes the Hello, reads and checks the Welcome or refusal.
//
// The server's answer is not trusted: invalid values are refused, and limits bound the memory that it can cost.
//
// Ownership: values.
// Threads: any.
// Errors: Result, with a message for the user.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/config.h"
#include "client/core/session/devices.h"
#include "protocol/codec/agreement.h"
#include "protocol/messages/session.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::client {

inline constexpr std::size_t kMaxWelcomeBytes = 4u << 20;

using AddressRanges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // base, bytes

struct Welcome {
    std::string session_id;
    std::vector<std::byte> session_token;
    std::size_t max_lanes = 0;
    std::string server_version;
    codec::Agreement agreement = codec::Agreement::full();
    DeviceSnapshot devices;
    std::uint64_t window_base = 0, window_bytes = 0;  // within one of the ranges offered
    std::optional<messages::Grant> grant;             // empty: the server does not place sessions
};

struct Answer {
    bool full = false;  // the server has no free place now, but may have one later
    Result<Welcome> welcome;
};

// Config::wait_when_full: how long the session may wait in the server's queue.
Status send_hello(transport::Connection& connection, const Config& config, const AddressRanges& offered);

// What a further connection (lane) of the session of a Welcome has to present.
struct LaneTicket {
    std::string session_id;
    std::vector<std::byte> session_token;
};
Status send_lane_hello(transport::Connection& connection, const Config& config, const LaneTicket& ticket,
                       std::size_t index);
// Did the server accept the lane?
Status read_lane_answer(const wire::ReceivedFrame& frame);

// Also registers the driver's error texts (error_text.h).
Answer read_answer(const wire::ReceivedFrame& frame, const AddressRanges& offered);

}  // namespace gpupool::client
