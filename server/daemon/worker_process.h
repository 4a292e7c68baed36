// The executables beside the daemon: finding them, starting a worker, asking one about a driver.
//
// The daemon has threads, so nothing of ours runs between fork and exec: posix_spawn does it all. A worker is started
// with
//   gpupool-worker --supervision-fd 3
// in a process group of its own, with no signal blocked, stdin from /dev/null, stdout and stderr going to the daemon's
// stderr, descriptor 3 its supervision socket, and every other descriptor closed.
//
// Ownership: the caller reaps the process. Threads: any. Errors: name the file and what to do.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::daemon {

// `setting` if given, else gpupool-worker beside the daemon or in ../lib/gpupool.
Result<std::string> find_worker(const std::string& setting);

// libgpupool-softgpu.so beside the daemon, in ../lib or in ../lib/gpupool.
Result<std::string> find_software_driver();

// Starts `program` as above; `output` becomes its stdout, `supervision` (-1: none) its descriptor 3.
Result<pid_t> spawn(const std::string& program, std::vector<std::string> arguments, int output, int supervision);

Result<pid_t> spawn_worker(const std::string& worker, int supervision_descriptor);

struct ProbedDevice {
    std::string name;
    std::string uuid;
    std::uint64_t memory_total_bytes = 0;
};

// What `gpupool-worker --probe DRIVER` (auto, or a path) says on its stdout, as one JSON object:
//   {"driver": PATH, "reason": TEXT, "kind": "nvidia"|"software", "driver_version": 13000,
//    "devices": [{"name": TEXT, "uuid": TEXT, "memory_total": BYTES}]}
// or {"error": TEXT} and a status other than 0. `reason` says why `auto` chose it; it may lack.
struct DriverFacts {
    std::string path;
    std::string reason;
    std::string kind;
    std::int32_t version = 0;
    std::vector<ProbedDevice> devices;
};

// Runs the probe. `cancel_descriptor` readable ends it early (`closed`).
Result<DriverFacts> probe_driver(const std::string& worker, const std::string& driver,
                                 std::chrono::milliseconds timeout, int cancel_descriptor);

// The probe's answer, read. Exposed for its tests.
Result<DriverFacts> parse_probe(const std::string& text);

}  // namespace gpupool::daemon
