// Finds the server of a sub-command: from its option, the client's configuration, or else this machine.
//
// Ownership: values.
// Threads: any.
// Errors: Result; the message is for the user.
#pragma once

#include <optional>
#include <string>

#include "common/result.h"

namespace gpupool::cli {

struct Settings {
    std::string server;  // HOST:PORT
    std::string token;   // empty: none
};

// Checks the value of --server; an empty one means that the option was not given.
Status check_server_option(const std::string& server);

// `server`: from the command line; may be empty.
Result<Settings> client_settings(const std::string& server);

// Both, for a sub-command: complains of what is wrong, and sets the exit code of the command.
std::optional<Settings> settings_or_complain(const std::string& server, int& exit_code);

}  // namespace gpupool::cli
