// Formats the daemon's answers to an administrator, for people and for programs.
//
// Ownership: values. Threads: any. Errors: Result of what is parsed; formatting has none.
#pragma once

#include <cstdint>
#include <string>

#include "common/result.h"
#include "protocol/messages/administration.h"

namespace gpupool::cli {

// A table for a terminal, a sentence, or a token, each with the end of its line.
std::string answer_text(const messages::AdministrationAnswer& answer);

// JSON. Field names are stable: fields may be added, but none changes its meaning. Units are in the names.
std::string answer_json(const messages::AdministrationAnswer& answer);

// "2026-11-30" as days since 1970-01-01, and back.
Result<std::int64_t> parse_day(const std::string& text);
std::string format_day(std::int64_t day);

}  // namespace gpupool::cli
