// The executables beside the daemon: finds them, starts workers, and asks one to describe the driver.
//
// The daemon has threads, so no code of ours may run between fork and exec; posix_spawn does everything. A worker is
// started as
//   gpupool-worker --supervision-fd 3 --sandbox ITEM...     (server/isolation/sandbox.h has the items)
// in a process group of its own, with no signal blocked, stdin from /dev/null, stdout and stderr connected to the
// daemon's stderr, its supervision socket as descriptor 3, and every other descriptor closed.
//
// Ownership: the caller reaps the process. Threads: any; a Probe, the loop's. Errors: messages name the file and say
// what to do.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "server/daemon/loop.h"
#include "server/isolation/sandbox.h"

namespace gpupool::daemon {

// `setting` if given, else gpupool-worker beside the daemon or in ../lib/gpupool.
Result<std::string> find_worker(const std::string& setting);

// libgpupool-softgpu.so beside the daemon, in ../lib or in ../lib/gpupool.
Result<std::string> find_software_driver();

// Starts `program` as described above. `output` becomes its stdout, `supervision` its descriptor 3 (-1: none).
Result<pid_t> spawn(const std::string& program, std::vector<std::string> arguments, int output, int supervision);

Result<pid_t> spawn_worker(const std::string& worker, int supervision_descriptor, const isolation::Sandbox& sandbox);

struct ProbedDevice {
    std::string name;
    std::string uuid;
    std::uint64_t memory_total_bytes = 0;
    std::uint64_t context_bytes = 0;  // what a context takes of it; 0: not measured
};

// What `gpupool-worker --probe DRIVER` (auto, or a path) prints on its stdout, as one JSON object:
//   {"driver": PATH, "reason": TEXT, "kind": "nvidia"|"software", "driver_version": 13000,
//    "devices": [{"name": TEXT, "uuid": TEXT, "memory_total": BYTES, "context": BYTES}]}
// or {"error": TEXT} and a non-zero exit code. `reason` says why `auto` chose this driver; it is optional.
struct DriverFacts {
    std::string path;
    std::string reason;
    std::string kind;
    std::int32_t version = 0;
    std::vector<ProbedDevice> devices;
};

struct ProbeRequest {
    std::string driver;
    std::optional<isolation::Sandbox> sandbox;  // as of a worker; unset: none
    bool contexts = false;  // measure the memory of a context too, with --probe-contexts: some 0.3 s for each device
};

// Runs the probe. Destroying it kills the process.
class Probe {
  public:
    // Calls `done` once, on the loop.
    Probe(Loop& loop, const std::string& worker, ProbeRequest request, std::chrono::milliseconds timeout,
          std::function<void(Result<DriverFacts>)> done);
    ~Probe();
    Probe(const Probe&) = delete;

  private:
    void read();
    // Waits for the process, then reports what it has printed, or `failure`.
    void finish(std::optional<Error> failure);
    void reap();

    const std::string command_;
    const std::function<void(Result<DriverFacts>)> done_;
    Loop& loop_;
    pid_t process_ = -1;
    UniqueFd output_;
    std::string answer_;
    std::optional<Error> failure_;
    Watch watch_;
    Timer deadline_, reaping_;
};

// Parses the probe's output. Public for its tests.
Result<DriverFacts> parse_probe(const std::string& text);

}  // namespace gpupool::daemon
