// Which server a sub-command means: its option, over the client's configuration, over this machine.
#pragma once

#include <string>

#include "common/result.h"

namespace gpupool::cli {

struct Settings {
    std::string server;  // HOST:PORT
    std::string token;   // empty: none
};

// Refuses what --server cannot be; empty: it was not given.
Status check_server_option(const std::string& server);

// `server` is what the command line says; empty: nothing.
Result<Settings> client_settings(const std::string& server);

}  // namespace gpupool::cli
