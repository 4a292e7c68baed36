// What the commands of administration have in common: their options, and sending a request.
//
// Ownership: values. Threads: one. Errors: are printed, and become the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "common/result.h"
#include "protocol/messages/administration.h"

namespace gpupool::cli {

struct AdministrationOptions {
    std::string server;
    bool json = false;
};

// Adds --server, and --json if the command prints a table.
std::shared_ptr<AdministrationOptions> add_options(CLI::App* command, bool prints_table);

// Sends the request, and prints what the server answers: as a table, as JSON, or a sentence. Returns the exit code.
int send_request(const AdministrationOptions& options, const messages::AdministrationRequest& request);

// "gpus=2" as a limit and its value.
Result<messages::LimitText> parse_change(const std::string& text);

// Adds the commands `show`, `set` and `unset` for the limits of one tenant or session; `what`: the word for it.
void add_limit_commands(CLI::App* parent, Command& chosen, messages::LimitScope::Kind kind, const std::string& what);

}  // namespace gpupool::cli
