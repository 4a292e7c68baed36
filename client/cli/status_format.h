// Formats a server's status, for people and for programs.
//
// Ownership: values.
// Threads: any.
// Errors: none.
#pragma once

#include <string>

#include "client/cli/administration.h"

namespace gpupool::cli {

// A table for a terminal, at most 100 columns wide.
std::string status_table(const ServerStatus& status);

// JSON. Field names are stable: fields may be added, but none changes its meaning. Units are in the names.
std::string status_json(const ServerStatus& status);

}  // namespace gpupool::cli
