#include "protocol/transport/connection.h"

namespace gpupool::transport {

Status receive_exactly(Connection& connection, MutableBuffer buffer) {
    while (!buffer.empty()) {
        auto received = connection.receive(buffer);
        if (!received) return received.error();
        buffer = buffer.subspan(*received);
    }
    return {};
}

}  // namespace gpupool::transport
