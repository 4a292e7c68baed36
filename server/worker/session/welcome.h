// Describes the driver and its devices in the Welcome, so that the client can answer questions about them locally.
//
// Threads: called before the dispatcher starts.
#pragma once

#include "common/result.h"
#include "protocol/schema/session.capnp.h"
#include "server/driver/library.h"
#include "server/worker/memory/window.h"

namespace gpupool::worker {

// Reserves the first of the client's windows that is also free in this process.
Result<Window> reserve_window(const driver::Api& api, capnp::List<schema::AddressWindow>::Reader wanted);

void describe_driver(const driver::Library& library, schema::Welcome::Builder welcome);

}  // namespace gpupool::worker
