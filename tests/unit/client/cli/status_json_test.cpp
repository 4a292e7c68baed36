// The fields of `gpupool status --json` are those of docs/status-json.md.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "client/cli/status_format.h"

namespace gpupool::test {
namespace {

using Names = std::set<std::string>;

Names documented() {
    Names names;
    std::ifstream file(STATUS_JSON_DOCUMENT);
    const std::regex row(R"(^\| `([^`]+)` \| [^|]+ \|.*)");
    for (std::string line; std::getline(file, line);) {
        std::smatch found;
        if (std::regex_match(line, found, row)) {
            EXPECT_TRUE(names.insert(found[1]).second) << found[1] << " is there twice";
        }
    }
    return names;
}

// The paths of all values, as the document writes them.
void collect(const nlohmann::json& value, const std::string& path, Names& names) {
    if (value.is_object()) {
        for (const auto& [key, inner] : value.items()) {
            const bool free = path == "sessions[].waits";  // reasons
            collect(inner, path + (path.empty() ? "" : ".") + (free ? "*" : key), names);
        }
    } else if (value.is_array()) {
        for (const auto& inner : value) {
            collect(inner, path + "[]", names);
        }
    } else {
        names.insert(path);
    }
}

TEST(StatusJson, HasTheDocumentedFields) {
    cli::ServerStatus status;
    status.devices.resize(1);
    status.sessions.resize(1);
    status.sessions[0].user_name = "alice";
    status.sessions[0].waits = {{"credit", 2}};
    status.sessions[0].devices = {{0, 1, 2}};
    status.queue.resize(1);
    Names names;
    collect(nlohmann::json::parse(cli::status_json(status)), "", names);
    EXPECT_EQ(names, documented());
}

}  // namespace
}  // namespace gpupool::test
