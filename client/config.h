// The client's settings: the environment, over a TOML file, over the defaults.
//
// The file is the first of $GPUPOOL_CONFIG (which must exist), $XDG_CONFIG_HOME/gpupool/client.toml,
// ~/.config/gpupool/client.toml and /etc/gpupool/client.toml. docs/configuration.md lists the settings.
//
// Ownership: values. Threads: read once, before the first session. Errors: Result; the message names the file, line and
// key, or the variable, and shows what was given.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/log.h"
#include "common/result.h"
#include "protocol/transport/open.h"
#include "protocol/wire/compression_mode.h"

namespace gpupool::client {

// Where `trace`, `summary` and `log` name a file, this means standard error.
constexpr const char* standard_error_name = "-";

// One for every two processors that the process may run on, from 1 to 8: each keeps a thread at either end busy.
std::size_t default_lanes();

struct Config {
    std::string server;  // "HOST:PORT" or "unix:/PATH"; empty: none was named
    transport::Choice transport = transport::Choice::automatic;
    std::string token;                          // what the server authenticates this user by; empty: none
    std::optional<std::uint64_t> memory_bytes;  // device memory to ask for; nullopt: what the server gives by default
    std::string log_file;                       // empty: no log
    log::Level log_level = log::Level::info;
    std::chrono::milliseconds connect_timeout{5000};
    std::chrono::milliseconds wait_when_full{0};  // for a place on a server that has none; 0: it is an error at once
    std::size_t lanes = default_lanes();          // connections that carry bulk data; 1: the session's own alone
    wire::CompressionMode compression = wire::CompressionMode::when_it_pays;  // of that data, both ways
    bool synchronous = false;  // every call waits for the server, so that errors appear where they are made
    std::string trace_file;    // a timeline; on standard error a line per call; empty: off
    std::uint64_t trace_events = 1'000'000;  // at most, of this process
    std::string summary_file;                // calls, bytes, waits and round trips at the end; empty: off
    std::string source;                      // the file that was read; empty: none
};

// Returns the value of an environment variable, nullopt where it is unset.
using Environment = std::function<std::optional<std::string>(const char* name)>;

// From the process's own environment and files.
Result<Config> load_config();

// The same with another environment; `system_file` stands for /etc/gpupool/client.toml.
Result<Config> load_config(const Environment& environment, const std::string& system_file);

// Opens the log that the configuration asks for; none is opened where none is asked for.
Status open_log(const Config& config);

}  // namespace gpupool::client
