// What the client says of itself to get a session, and what it makes of the answer.
//
// Ownership: values. Threads: any. Errors: Result, whose message is for the user. A server may answer anything: what
//   cannot be is refused here, with limits on what memory it may cost.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/config.h"
#include "client/core/session/devices.h"
#include "protocol/codec/agreement.h"
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
    std::uint64_t window_base = 0, window_bytes = 0;  // one of those offered
};

struct Answer {
    bool full = false;  // the server has no place now, and may have one later
    Result<Welcome> welcome;
};

Status send_hello(transport::Connection& connection, const Config& config, const AddressRanges& offered);

// For one more connection of the session that `welcome` gave.
struct LaneTicket {
    std::string session_id;
    std::vector<std::byte> session_token;
};
Status send_lane_hello(transport::Connection& connection, const Config& config, const LaneTicket& ticket,
                       std::size_t index);
// Whether the server took it.
Status read_lane_answer(const wire::ReceivedFrame& frame);

// The driver's own error texts are learned (error_text.h).
Answer read_answer(const wire::ReceivedFrame& frame, const AddressRanges& offered);

}  // namespace gpupool::client
