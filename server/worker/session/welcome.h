// What a worker tells its client at the start: the driver and its devices as they are, once, so that the client can
// answer for itself from then on.
//
// Threads: called before the dispatcher starts.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "protocol/schema/session.capnp.h"
#include "server/driver/library.h"

namespace gpupool::worker {

struct Window {
    std::uint64_t base = 0, bytes = 0;
};

// Reserves the first of the client's windows that is free here as well.
Result<Window> reserve_window(const driver::Api& api, capnp::List<schema::AddressWindow>::Reader wanted);

void describe_driver(const driver::Library& library, schema::Welcome::Builder welcome);

}  // namespace gpupool::worker
