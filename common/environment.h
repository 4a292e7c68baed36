// Reads environment variables.
//
// An unset variable is nullopt. An empty value counts as unset, as users expect of `NAME= program`; `raw` distinguishes
// the two.
//
// Ownership: values. Threads: any, as long as no thread changes the environment (as for getenv). Errors: none.
#pragma once

#include <optional>
#include <string>

namespace gpupool::environment {

// The unmodified value; may be empty.
std::optional<std::string> raw(const char* name);

std::optional<std::string> text(const char* name);

// True if this CUDA switch is on: its value begins with 1, as in CUDA_LAUNCH_BLOCKING=1.
bool cuda_switch(const char* name);

}  // namespace gpupool::environment
