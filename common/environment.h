// Look-ups in the environment.
//
// An unset variable is nullopt. An empty value counts as unset, as users expect of `NAME= program`; who must tell the
// two apart uses `raw`.
//
// Ownership: values. Threads: as getenv: safe while nobody changes the environment. Errors: none.
#pragma once

#include <optional>
#include <string>

namespace gpupool::environment {

// The value as it is, "" included.
std::optional<std::string> raw(const char* name);

std::optional<std::string> text(const char* name);

// Is this switch of CUDA's on? Its value begins with 1, as in CUDA_LAUNCH_BLOCKING=1.
bool cuda_switch(const char* name);

}  // namespace gpupool::environment
