#include "common/environment.h"

#include <cstdlib>

namespace gpupool::environment {

std::optional<std::string> raw(const char* name) {
    // secure_getenv: a set-user-ID program must not take file names from its caller's environment.
    const char* value = ::secure_getenv(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    return std::string(value);
}

std::optional<std::string> text(const char* name) {
    auto value = raw(name);
    if (value && value->empty()) {
        return std::nullopt;
    }
    return value;
}

bool cuda_switch(const char* name) {
    return raw(name).value_or("").starts_with('1');
}

}  // namespace gpupool::environment
