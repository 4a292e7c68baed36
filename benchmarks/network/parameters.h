// Parses a network's round trip and rate: "100us", "25gbit".
//
// Threads: any. Errors: none; nullopt for invalid text.
#pragma once

#include <optional>
#include <string>

namespace gpupool::network {

// 20us, 1ms, up to 10s.
std::optional<double> seconds(const std::string& text);

// 100mbit, 25gbit; not 0.
std::optional<double> bytes_per_s(const std::string& text);

}  // namespace gpupool::network
