#include "common/environment.h"

#include <cstdlib>

namespace gpupool::environment {

std::optional<std::string> raw(const char* name) {
    // What runs with more rights than its caller has takes no file's name from that caller.
    const char* value = ::secure_getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
}

std::optional<std::string> text(const char* name) {
    auto value = raw(name);
    if (value && value->empty()) return std::nullopt;
    return value;
}

bool cuda_switch(const char* name) {
    return raw(name).value_or("").starts_with('1');
}

}  // namespace gpupool::environment
