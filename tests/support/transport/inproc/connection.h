// A Connection within one process: two bounded byte queues, for tests and benchmarks.
//
// Ownership: both ends share the queues; destroying an end shuts it down. Threads, errors: as for Connection.
#pragma once

#include <memory>
#include <utility>

#include "protocol/transport/connection.h"

namespace gpupool::transport::inproc {

inline constexpr std::size_t kDefaultBufferBytes = 256u << 10;

// Two connected ends; each direction buffers at most `buffer_bytes`.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_pair(
    std::size_t buffer_bytes = kDefaultBufferBytes);

}  // namespace gpupool::transport::inproc
