// Formats a server's status, for people and for programs.
//
// Ownership: values.
// Threads: any.
// Errors: none.
#pragma once

#include <string>

#include "client/cli/administration.h"

namespace gpupool::cli {

// "17 s", "3 min", "5 h", "2 d".
std::string age_text(std::uint64_t seconds);
// Cuts long text so that a table stays aligned; the JSON output has the whole text.
std::string cut_text(std::string text, std::size_t columns);
// For what the session's queued work waits: "credit 2, data 1".
std::string waits_text(const SessionStatus& session);
// "0,3": the server's numbers, in the session's order.
std::string devices_text(const SessionStatus& session);

// A table for a terminal, at most 100 columns wide.
std::string status_table(const ServerStatus& status);

// JSON. Field names are stable: fields may be added, but none changes its meaning. Units are in the names.
std::string status_json(const ServerStatus& status);

}  // namespace gpupool::cli
