// A sub-command of `gpupool`: each lies in a file of its own and adds itself to the command line.
//
// Exit codes, for all of them:
//   0    it worked (`run`, `trace`: the program's own code, or its signal)
//   1    `status`: no server, or it refused: the message says why
//   2    a wrong command line
//   125  `run`, `trace`: gpupool itself failed before the program started
//   126  `run`, `trace`: the program cannot be executed
//   127  `run`, `trace`: there is no such program
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::cli {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitGpupoolFailed = 125;
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// What to do once the command line was read; gives the exit code.
using Command = std::function<int()>;

// `program` is what stood behind `--`.
void add_run(CLI::App& app, Command& chosen, const std::vector<std::string>& program);
void add_trace(CLI::App& app, Command& chosen, const std::vector<std::string>& program);
void add_status(CLI::App& app, Command& chosen);
void add_coverage(CLI::App& app, Command& chosen);

// "gpupool: message" on stderr.
void complain(const std::string& message);

}  // namespace gpupool::cli
