// Loads and initialises the driver: what a worker does before it talks to its client, and what a worker of the stock
// has done before there is a client.
//
// The driver reads its environment variables in cuInit, so a worker can serve only sessions with the environment for
// which it was prepared. Whatever depends on the client's Hello (its address window, its quota) is not prepared.
//
// Ownership: lives as long as the process, as drivers do.
// Threads: one.
// Errors: written for the client's user.
#pragma once

#include <capnp/list.h>
#include <capnp/message.h>

#include <memory>
#include <string>

#include "common/result.h"
#include "protocol/schema/session.capnp.h"
#include "server/driver/library.h"
#include "server/worker/session/output.h"

namespace gpupool::worker {

struct Prepared {
    // What kernels and the driver print. Never destroyed: the driver may print while the process ends.
    DeviceOutput& output = *new DeviceOutput;
    DeviceOutput& errors = *new DeviceOutput;
    driver::Library library;
    // A Welcome that describes the driver and its devices, not yet the session.
    capnp::MallocMessageBuilder welcome;
    // The primary context of PreparedContext::kDevice, if prepare_context() could make one.
    CUcontext context = nullptr;
};

// Captures standard output and error, sets the environment, and loads the driver.
Result<std::unique_ptr<Prepared>> prepare(const std::string& driver_path,
                                          capnp::List<schema::EnvironmentEntry>::Reader environment);

// Makes the primary context, which takes device memory. Makes none on a device that only one process at a time may use
// (compute mode EXCLUSIVE_PROCESS), because it would keep out every session that is not given this worker; and none if
// less than an eighth of the device's memory is free, because running sessions may need that.
void prepare_context(Prepared& prepared);
// Call at intervals: releases the prepared context if too little device memory is left. False if there is none (any
// more).
bool keep_context(Prepared& prepared);

}  // namespace gpupool::worker
