#include "protocol/transport/connection.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace gpupool::transport {

Status receive_exactly(Connection& connection, MutableBuffer buffer) {
    while (!buffer.empty()) {
        auto received = connection.receive(buffer);
        if (!received) return received.error();
        buffer = buffer.subspan(*received);
    }
    return {};
}

int poll_timeout_ms(Clock::time_point deadline) noexcept {
    if (deadline == kNoDeadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace gpupool::transport
