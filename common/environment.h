// Typed look-ups in the environment.
//
// An unset variable is nullopt, a set one that does not parse is an error that names the variable. An empty value
// counts as unset, as users expect of `NAME= program`; who must tell the two apart uses `raw`.
//
// Ownership: values. Threads: as getenv: safe while nobody changes the environment. Errors: Result.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/result.h"

namespace gpupool::environment {

// The value as it is, "" included.
std::optional<std::string> raw(const char* name);

std::optional<std::string> text(const char* name);
Result<std::optional<bool>> boolean(const char* name);
Result<std::optional<std::uint64_t>> size_bytes(const char* name);
Result<std::optional<std::chrono::milliseconds>> duration(const char* name);

}  // namespace gpupool::environment
