#include "tests/unit/calls/driver_symbols.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace gpupool::test {

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error("cannot read " + path);
    }
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<DriverSymbol> driver_symbols() {
    std::istringstream file(read_file(GPUPOOL_TEST_DATA "/driver_symbols.csv"));
    std::vector<DriverSymbol> symbols;
    std::string line;
    std::getline(file, line);  // the column names
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        DriverSymbol entry;
        std::string since, stream;
        std::getline(fields, entry.symbol, ',');
        std::getline(fields, entry.name, ',');
        std::getline(fields, since, ',');
        std::getline(fields, stream, ',');
        entry.since = std::stoi(since);
        entry.per_thread = stream == "per-thread";
        symbols.push_back(entry);
    }
    return symbols;
}

std::string difference(const std::set<std::string>& expected, const std::set<std::string>& actual) {
    std::string text;
    for (const std::string& name : expected) {
        text += actual.contains(name) ? "" : "missing: " + name + "\n";
    }
    for (const std::string& name : actual) {
        text += expected.contains(name) ? "" : "unexpected: " + name + "\n";
    }
    return text;
}

}  // namespace gpupool::test
