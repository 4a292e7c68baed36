#include "common/environment.h"

#include <cstdlib>

namespace gpupool::environment {

std::optional<std::string> raw(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
}

std::optional<std::string> text(const char* name) {
    auto value = raw(name);
    if (value && value->empty()) return std::nullopt;
    return value;
}

}  // namespace gpupool::environment
