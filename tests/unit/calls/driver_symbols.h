// tests/data/driver_symbols.csv: what a driver 580 exports, and what cuGetProcAddress calls it.
//
// Ownership: values. Errors: a file that cannot be read throws, which fails the test.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace gpupool::test {

struct DriverSymbol {
    std::string symbol;
    std::string name;         // as cuGetProcAddress is asked for it
    int since = 0;            // the CUDA version from which on that name means this symbol
    bool per_thread = false;  // the form with the per-thread default stream
};

std::vector<DriverSymbol> driver_symbols();

std::string read_file(const std::string& path);

// What is in one of the sets only, a line each: empty when they are equal.
std::string difference(const std::set<std::string>& expected, const std::set<std::string>& actual);

}  // namespace gpupool::test
