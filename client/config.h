// The client's settings. An environment variable overrides the TOML file, and the file overrides the defaults.
//
// The file is the first of $GPUPOOL_CONFIG (which must exist), $XDG_CONFIG_HOME/gpupool/client.toml,
// ~/.config/gpupool/client.toml and /etc/gpupool/client.toml. docs/configuration.md lists the settings.
//
// Ownership: values.
// Threads: read once, before the first session.
// Errors: Result; the message names the file, line and key, or the variable, and shows the value.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/log.h"
#include "common/quotas.h"
#include "common/result.h"
#include "common/session_class.h"
#include "protocol/transport/open.h"
#include "protocol/wire/compression_mode.h"

namespace gpupool::client {

// As a file name in `trace`, `summary` and `log`, this means standard error.
constexpr const char* kStandardErrorName = "-";

// One for every two processors that the process may use, from 1 to 8, because each lane occupies a thread at each
// end.
std::size_t default_lanes();

struct Config {
    std::string server;  // "HOST:PORT" or "unix:/PATH"; empty: not set
    transport::Choice transport = transport::Choice::automatic;
    std::string token;                          // authenticates this user to the server; empty: none
    Quotas memory;                              // device memory to ask for; none: the server's default
    std::optional<std::size_t> gpus;            // how many to ask for; unset: the server's default
    std::optional<SessionClass> session_class;  // likewise
    std::optional<std::uint64_t> priority;      // likewise
    std::string job;       // its processes share one quota of device memory; empty: this process has its own
    std::string log_file;  // empty: no log
    log::Level log_level = log::Level::info;
    std::chrono::milliseconds connect_timeout{5000};
    std::chrono::milliseconds wait_when_full{0};  // how long to wait for a place on a full server; 0: fail at once
    std::size_t lanes = default_lanes();          // connections for bulk data; 1: only the session's own
    // compression of bulk data, in both directions
    wire::CompressionMode compression = wire::CompressionMode::when_it_pays;
    bool verbose = false;      // says on standard error what the session got, and its place in the server's queue
    bool synchronous = false;  // every call waits for the server, so errors appear at the call that causes them
    std::string trace_file;    // a timeline; if standard error, a line per call; empty: off
    std::uint64_t trace_events = 1'000'000;  // limit for this process
    std::string summary_file;                // summary of calls, bytes, waits and round trips; empty: off
    std::string source;                      // the configuration file that was read; empty: none
};

// Returns the value of an environment variable; nullopt if it is unset.
using Environment = std::function<std::optional<std::string>(const char* name)>;

// Reads the process's own environment and files.
Result<Config> load_config();

// The same with another environment; `system_file` replaces /etc/gpupool/client.toml.
Result<Config> load_config(const Environment& environment, const std::string& system_file);

// Opens the log, if the configuration asks for one.
Status open_log(const Config& config);

}  // namespace gpupool::client
