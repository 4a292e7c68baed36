// A sub-command of `gpupool`. Each has a file of its own and adds itself to the command line.
//
// Exit codes of all of them:
//   0    success (`run`, `trace`: the program's own code or signal)
//   1    `status`, `top`, `tenant`, `session`, `usage`: no server, or it refused; the message says why
//   2    wrong command line
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

// Runs the sub-command after the command line was parsed; returns the exit code.
using Command = std::function<int()>;

// `program`: the arguments after `--`.
void add_run(CLI::App& app, Command& chosen, const std::vector<std::string>& program);
void add_trace(CLI::App& app, Command& chosen, const std::vector<std::string>& program);
void add_status(CLI::App& app, Command& chosen);
void add_top(CLI::App& app, Command& chosen);
void add_tenant(CLI::App& app, Command& chosen);
void add_session(CLI::App& app, Command& chosen);
void add_usage(CLI::App& app, Command& chosen);
void add_coverage(CLI::App& app, Command& chosen);

// Prints "gpupool: message" on stderr.
void complain(const std::string& message);

}  // namespace gpupool::cli
