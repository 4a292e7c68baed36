// Reads tests/data/driver_symbols.csv: the symbols that a driver 580 exports, and their names for cuGetProcAddress.
//
// Ownership: values. Errors: throws when the file cannot be read.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace gpupool::test {

struct DriverSymbol {
    std::string symbol;
    std::string name;         // the base name, as passed to cuGetProcAddress
    int since = 0;            // the CUDA version from which on that name refers to this symbol
    bool per_thread = false;  // the variant for the per-thread default stream
};

std::vector<DriverSymbol> driver_symbols();

std::string read_file(const std::string& path);

// The elements that are in only one of the sets, a line each; empty when the sets are equal.
std::string difference(const std::set<std::string>& expected, const std::set<std::string>& actual);

}  // namespace gpupool::test
