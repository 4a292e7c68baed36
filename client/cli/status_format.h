// A server's status as people and as programs read it.
#pragma once

#include <string>

#include "client/cli/administration.h"

namespace gpupool::cli {

// Lines of at most 100 columns.
std::string status_table(const ServerStatus& status);

// The field names are stable: new ones may be added, none changes its meaning. Units are in the names.
std::string status_json(const ServerStatus& status);

}  // namespace gpupool::cli
