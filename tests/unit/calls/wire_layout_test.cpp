// Compares the opcodes and the wire format of every call with a file. Both are compatibility promises, so a change must
// be deliberate.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "protocol/calls/call.h"
#include "protocol/calls/table.h"
#include "protocol/codec/layout.h"
#include "tests/unit/calls/driver_symbols.h"

namespace gpupool::test {
namespace {

constexpr const char* kGolden = GPUPOOL_TEST_DATA "/wire_layout.golden";
constexpr const char* kHowToUpdate =
    "The wire format of these calls is not what tests/data/wire_layout.golden says.\n"
    "Not meant? Then undo the change: an opcode belongs to its symbol for ever.\n"
    "A call or notice whose layout changes cannot be used between this version and earlier ones, and one of the core "
    "set "
    "keeps them from having a session at all (docs/architecture/versions.md): add a new call instead. Where only the "
    "meaning changes, raise its behaviour. A changed record: line needs another protocolVersion in session.capnp.\n"
    "Meant? Run this test with GPUPOOL_UPDATE_GOLDEN=1, read the file's diff, and commit it with the change.\n";

// By opcode.
std::map<std::string, std::string> lines_of(std::istream& file) {
    std::map<std::string, std::string> lines;
    std::string line;
    while (std::getline(file, line)) {
        lines[line.substr(0, line.find(' '))] = line;
    }
    return lines;
}

TEST(WireLayout, MatchesTheGoldenFile) {
    std::stringstream now;
    for (const codec::LayoutLine& line : codec::layout_lines()) {
        now << line.text;
        if (line.behaviour != 1) {
            now << " behaviour:" << line.behaviour;
        }
        now << '\n';
    }
    now << "record:command " << codec::members_text(kMembers<codec::CommandHeader>) << '\n';
    now << "record:reply " << codec::members_text(kMembers<codec::ReplyHeader>) << '\n';
    if (std::getenv("GPUPOOL_UPDATE_GOLDEN") != nullptr) {
        std::ofstream(kGolden) << now.str();
    }
    std::istringstream golden(read_file(kGolden));
    const auto before = lines_of(golden), after = lines_of(now);
    std::string changes;
    for (const auto& [opcode, line] : before) {
        const auto it = after.find(opcode);
        if (it == after.end()) {
            changes += "- " + line + "\n";
        } else if (it->second != line) {
            changes += "- " + line + "\n+ " + it->second + "\n";
        }
    }
    for (const auto& [opcode, line] : after) {
        changes += before.contains(opcode) ? "" : "+ " + line + "\n";
    }
    EXPECT_TRUE(changes.empty()) << kHowToUpdate << changes;
}

TEST(WireLayout, OpcodesAreUniqueAndInTheirRange) {
    std::map<std::uint16_t, std::string_view> seen;
    for (const calls::CallInfo& call : calls::all_calls()) {
        const auto [it, fresh] = seen.emplace(call.opcode, call.name);
        EXPECT_TRUE(fresh) << call.name << " has the opcode of " << it->second;
        EXPECT_EQ(call.opcode >= calls::kFirstInternalOpcode, call.base_name.empty()) << call.name;
        EXPECT_NE(call.opcode, 0) << call.name;
        EXPECT_EQ(calls::find(call.opcode), &call) << call.name;
    }
    EXPECT_EQ(calls::find(0), nullptr);
    EXPECT_EQ(calls::name_of(0xefff), "unknown");
}

}  // namespace
}  // namespace gpupool::test
