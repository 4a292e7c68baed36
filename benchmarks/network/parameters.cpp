#include "benchmarks/network/parameters.h"

#include <cmath>
#include <exception>

namespace gpupool::network {
namespace {

struct Unit {
    const char* name;
    double factor;
};

template <std::size_t Count>
std::optional<double> parse(const std::string& text, const Unit (&units)[Count]) {
    std::size_t end = 0;
    double number = 0;
    try {
        number = std::stod(text, &end);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    for (const Unit& unit : units) {
        if (text.substr(end) == unit.name && std::isfinite(number) && number >= 0) {
            return number * unit.factor;
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<double> seconds(const std::string& text) {
    constexpr Unit kUnits[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    const auto value = parse(text, kUnits);
    return value && *value <= 10 ? value : std::nullopt;
}

std::optional<double> bytes_per_s(const std::string& text) {
    constexpr Unit kUnits[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
    const auto value = parse(text, kUnits);
    return value && *value > 0 ? value : std::nullopt;
}

}  // namespace gpupool::network
