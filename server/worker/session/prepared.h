// The driver, loaded and initialised: what a worker does before it speaks with its client, and what one of the stock
// has done before there is a client.
//
// What the driver reads from the environment it reads in cuInit, so a worker can serve only sessions of the environment
// that it was prepared with. What depends on the client's Hello (its address window, its quota) is not prepared.
//
// Ownership: lives as long as the process, as drivers do. Threads: one. Errors: for the client to read.
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
    // What kernels and the driver print. Never taken down: the driver may print while the process ends.
    DeviceOutput& output = *new DeviceOutput;
    DeviceOutput& errors = *new DeviceOutput;
    driver::Library library;
    // A Welcome that describes the driver and its devices, and nothing else yet.
    capnp::MallocMessageBuilder welcome;
    // The primary context of Worker::kPreparedDevice, where it was asked for and could be had.
    CUcontext context = nullptr;
};

// Standard output and error become the driver's, the environment is set, the driver loaded.
Result<std::unique_ptr<Prepared>> prepare(const std::string& driver_path,
                                          capnp::List<schema::EnvironmentEntry>::Reader environment);

// Takes as much device memory as a context does. On a device that one process at a time may use (compute mode
// EXCLUSIVE_PROCESS) there is none: it would keep out every session that is not given this worker. Nor where less than
// an eighth of the device's memory is free: running sessions may need that.
void prepare_context(Prepared& prepared);
// To be called now and then: gives it back when so little is left. Is it (still) there?
bool keep_context(Prepared& prepared);

}  // namespace gpupool::worker
