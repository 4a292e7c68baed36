// The symbols of libcuda.so.1, the call table, NVIDIA's headers and a real driver's list of exports must agree.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>

#include "protocol/calls/table.h"
#include "tests/unit/calls/driver_symbols.h"

namespace gpupool::test {
namespace {

std::set<std::string> listed() {
    std::set<std::string> names;
    for (const DriverSymbol& symbol : driver_symbols()) {
        names.insert(symbol.symbol);
    }
    return names;
}

std::set<std::string> in_table() {
    std::set<std::string> names;
    for (const calls::CallInfo& call : calls::all_calls()) {
        if (call.base_name.empty()) {
            continue;  // gpupool's own
        }
        names.emplace(call.name);
        if (call.per_thread_suffix != nullptr) {
            names.insert(std::string(call.name) + call.per_thread_suffix);
        }
    }
    return names;
}

std::set<std::string> exported() {
    std::set<std::string> names;
    std::FILE* const nm = popen(GPUPOOL_NM " -D --defined-only " GPUPOOL_CLIENT_LIBRARY, "r");
    if (nm == nullptr) {
        ADD_FAILURE() << "cannot run " GPUPOOL_NM;
        return names;
    }
    char line[1024];
    while (std::fgets(line, sizeof line, nm) != nullptr) {
        const std::string text = line;
        const std::size_t begin = text.rfind(' ') + 1;
        names.insert(text.substr(begin, text.find_last_not_of('\n') + 1 - begin));
    }
    EXPECT_EQ(pclose(nm), 0);
    return names;
}

// Functions that the preprocessed headers declare: "CUresult", a name in the driver's style, "(".
std::set<std::string> declared() {
    constexpr std::string_view kType = "CUresult";
    const std::string text = read_file(GPUPOOL_DECLARATIONS);
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    std::set<std::string> names;
    for (std::size_t at = text.find(kType); at != std::string::npos; at = text.find(kType, at + 1)) {
        const std::size_t begin = text.find_first_not_of(" \n", at + kType.size());
        std::size_t end = begin;
        while (end < text.size() && is_name(text[end])) {
            ++end;
        }
        const std::size_t behind = text.find_first_not_of(" \n", end);
        if (behind != std::string::npos && text[behind] == '(' && end > begin + 2 &&
            text.compare(begin, 2, "cu") == 0) {
            names.insert(text.substr(begin, end - begin));
        }
    }
    return names;
}

TEST(Exports, ListIsComplete) {
    EXPECT_EQ(listed().size(), 637u);
    EXPECT_EQ(driver_symbols().size(), 637u) << "a symbol is listed twice";
}

TEST(Exports, LibraryExportsExactlyTheDriversSymbols) {
    EXPECT_EQ(difference(listed(), exported()), "");
}

TEST(Exports, TableCoversTheHeaders) {
    EXPECT_EQ(difference(declared(), in_table()), "");
}

TEST(Exports, TableAgreesWithTheDriversList) {
    std::set<std::string> from_list, from_table;
    const auto line = [](const std::string& symbol, std::string_view name, int since) {
        return symbol + " is " + std::string(name) + " from " + std::to_string(since) + " on";
    };
    for (const DriverSymbol& symbol : driver_symbols()) {
        from_list.insert(line(symbol.symbol, symbol.name, symbol.since));
    }
    for (const calls::CallInfo& call : calls::all_calls()) {
        if (call.base_name.empty()) {
            continue;
        }
        from_table.insert(line(std::string(call.name), call.base_name, call.since));
        if (call.per_thread_suffix != nullptr) {
            from_table.insert(
                line(std::string(call.name) + call.per_thread_suffix, call.base_name, call.per_thread_since));
        }
    }
    EXPECT_EQ(difference(from_list, from_table), "");
}

TEST(Exports, EveryRefusalGivesAReason) {
    for (const calls::CallInfo& call : calls::all_calls()) {
        if (call.delivery == calls::Delivery::refused) {
            EXPECT_TRUE(call.why_refused != nullptr && std::string_view(call.why_refused).size() > 5) << call.name;
        } else {
            EXPECT_EQ(call.why_refused, nullptr) << call.name;
        }
    }
}

}  // namespace
}  // namespace gpupool::test
