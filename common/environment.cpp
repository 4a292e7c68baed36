#include "common/environment.h"

#include <cstdlib>

#include "common/units.h"

namespace gpupool::environment {
namespace {

template <class T>
Result<std::optional<T>> parsed(const char* name, Result<T> (*parse)(std::string_view)) {
    const auto given = text(name);
    if (!given) return std::optional<T>();
    Result<T> value = parse(*given);
    if (!value) return value.error().within(name);
    return std::optional<T>(*value);
}

}  // namespace

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

Result<std::optional<bool>> boolean(const char* name) {
    return parsed<bool>(name, parse_switch);
}

Result<std::optional<std::uint64_t>> size_bytes(const char* name) {
    return parsed<std::uint64_t>(name, parse_bytes);
}

Result<std::optional<std::chrono::milliseconds>> duration(const char* name) {
    return parsed<std::chrono::milliseconds>(name, parse_duration);
}

}  // namespace gpupool::environment
