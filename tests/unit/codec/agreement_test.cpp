// Tests the agreement of two ends on calls and notices, with the lists of other versions and with invalid lists.
#include "protocol/codec/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "protocol/calls/table.h"
#include "protocol/codec/core_set.h"
#include "protocol/codec/layout.h"

namespace gpupool::test {
namespace {

using codec::Agreement;
using codec::Knowledge;
using codec::Known;
using codec::NoticeType;

constexpr codec::Ends kClient{codec::Ends::Side::client, "0.1.0", "0.3.0"};
constexpr codec::Ends kServer{codec::Ends::Side::server, "0.1.0", "0.3.0"};
// Calls outside the core set.
using Trim = calls::cuMemPoolTrimTo;
using Limit = calls::cuCtxGetLimit;
using Dot = calls::gpGraphDot;
constexpr std::uint16_t kUnknownCall = 1020, kUnknownNotice = 200;

Known& find(std::vector<Known>& list, std::uint16_t number) {
    return *std::find_if(list.begin(), list.end(), [&](const Known& known) { return known.number == number; });
}
void remove(std::vector<Known>& list, std::uint16_t number) {
    std::erase_if(list, [&](const Known& known) { return known.number == number; });
}
void add(std::vector<Known>& list, std::uint16_t number) {
    list.push_back({number, 1, 0x12345678});
    std::sort(list.begin(), list.end(), [](const Known& a, const Known& b) { return a.number < b.number; });
}
constexpr std::uint16_t number_of(NoticeType type) {
    return static_cast<std::uint16_t>(type);
}

// Another version of gpupool: it lacks a call and a notice, has another call and notice, and two calls differ.
Knowledge other_version() {
    Knowledge other = codec::own_knowledge();
    remove(other.calls, Trim::kOpcode);
    find(other.calls, Limit::kOpcode).layout ^= 1;
    find(other.calls, Dot::kOpcode).behaviour = 2;
    add(other.calls, kUnknownCall);
    remove(other.notices, number_of(NoticeType::output));
    add(other.notices, kUnknownNotice);
    return other;
}

std::string error_of(const Result<Knowledge>& read) {
    return read ? std::string() : read.error().message;
}

TEST(Agreement, SameBuildAgreesOnEverything) {
    const Agreement agreement = Agreement::full();
    EXPECT_TRUE(agreement.differences().empty());
    EXPECT_EQ(agreement.summary(kClient), "");
    EXPECT_TRUE(agreement.check_core(kClient));
    EXPECT_EQ(agreement.calls_in_common(), codec::own_knowledge().calls.size());
    EXPECT_TRUE(agreement.has(Trim::kOpcode));
    EXPECT_TRUE(agreement.has(NoticeType::output));
    EXPECT_FALSE(agreement.has(calls::cuInit::kOpcode)) << "it never travels";
    EXPECT_FALSE(agreement.has(kUnknownCall));
    EXPECT_FALSE(agreement.has(static_cast<NoticeType>(0xffff)));
}

TEST(Agreement, ExcludesCallsThatDiffer) {
    const Agreement agreement(codec::own_knowledge(), other_version());
    for (const std::uint16_t opcode : {Trim::kOpcode, Limit::kOpcode, Dot::kOpcode, kUnknownCall}) {
        EXPECT_FALSE(agreement.has(opcode)) << opcode;
    }
    EXPECT_EQ(agreement.calls_in_common(), codec::own_knowledge().calls.size() - 3);
    EXPECT_TRUE(agreement.has(calls::gpLaunch::kOpcode));
    EXPECT_FALSE(agreement.has(NoticeType::output));
    EXPECT_FALSE(agreement.has(static_cast<NoticeType>(kUnknownNotice)));
    EXPECT_TRUE(agreement.has(NoticeType::errors));
    EXPECT_TRUE(agreement.check_core(kClient)) << "no difference concerns the core set";
}

TEST(Agreement, IsTheSameAtBothEnds) {
    const Agreement here(codec::own_knowledge(), other_version()), there(other_version(), codec::own_knowledge());
    for (unsigned opcode = 0; opcode <= 0xffff; ++opcode) {
        ASSERT_EQ(here.has(static_cast<std::uint16_t>(opcode)), there.has(static_cast<std::uint16_t>(opcode)))
            << opcode;
    }
    for (unsigned type = 0; type <= 0xffff; ++type) {
        ASSERT_EQ(here.has(static_cast<NoticeType>(type)), there.has(static_cast<NoticeType>(type))) << type;
    }
}

TEST(Agreement, SummaryNamesUnusableCalls) {
    const Agreement agreement(codec::own_knowledge(), other_version());
    const std::size_t common = codec::own_knowledge().calls.size() - 3;
    EXPECT_EQ(
        agreement.summary(kClient),
        "client 0.1.0, server 0.3.0: " + std::to_string(common) +
            " calls in common; not usable: cuCtxGetLimit (different layout), cuMemPoolTrimTo (unknown to the "
            "server), gpGraphDot (different behaviour), notice output (unknown to the server), call 1020 (unknown to "
            "the client), notice 200 (unknown to the client)");
    const std::string of_server = agreement.summary(kServer);
    EXPECT_NE(of_server.find("cuMemPoolTrimTo (unknown to the client)"), std::string::npos) << of_server;
    EXPECT_NE(of_server.find("call 1020 (unknown to the server)"), std::string::npos) << of_server;
    EXPECT_EQ(agreement.why_not(Trim::kOpcode, kClient.here), "unknown to the server");
    EXPECT_EQ(agreement.why_not(Limit::kOpcode, kClient.here), "different layout");
    EXPECT_EQ(agreement.why_not(calls::gpLaunch::kOpcode, kClient.here), "");
}

TEST(Agreement, LengthOfMessagesIsLimited) {
    Knowledge flood;
    for (std::uint16_t number = 0; number < codec::kMaxKnown; ++number) {
        flood.calls.push_back({number, 7, 7});
        flood.notices.push_back({number, 7, 7});
    }
    const Agreement agreement(codec::own_knowledge(), flood);
    EXPECT_LT(agreement.summary(kClient).size(), 1000u);
    const Status core = agreement.check_core(kClient);
    ASSERT_FALSE(core);
    EXPECT_LT(core.error().message.size(), 1000u);
}

TEST(Agreement, CoreSetIsRequired) {
    Knowledge other = codec::own_knowledge();
    find(other.calls, calls::gpLaunch::kOpcode).layout ^= 1;
    remove(other.notices, number_of(NoticeType::throttle));
    const Status core = Agreement(codec::own_knowledge(), other).check_core(kServer);
    ASSERT_FALSE(core);
    EXPECT_EQ(core.error().message,
              "this client is gpupool 0.1.0 and the server is gpupool 0.3.0: they do not agree on gpLaunch (different "
              "layout), notice throttle (unknown to the client); use a client of the server's version");
    const codec::Ends same{codec::Ends::Side::server, "0.1.0", "0.1.0"};
    const Status of_same_version = Agreement(codec::own_knowledge(), other).check_core(same);
    ASSERT_FALSE(of_same_version);
    EXPECT_TRUE(of_same_version.error().message.ends_with("; build both of the same sources"))
        << of_same_version.error().message;
    EXPECT_FALSE(Agreement(codec::own_knowledge(), {}).check_core(kServer)) << "a peer without lists knows nothing";
}

TEST(Agreement, EveryCallOfTheCoreSetIsRequired) {
    for (const std::uint16_t opcode : codec::kCoreCalls) {
        Knowledge other = codec::own_knowledge();
        remove(other.calls, opcode);
        const Status core = Agreement(codec::own_knowledge(), other).check_core(kServer);
        ASSERT_FALSE(core) << calls::name_of(opcode);
        EXPECT_NE(core.error().message.find(calls::name_of(opcode)), std::string::npos) << core.error().message;
    }
    for (const NoticeType type : codec::kCoreNotices) {
        Knowledge other = codec::own_knowledge();
        remove(other.notices, number_of(type));
        EXPECT_FALSE(Agreement(codec::own_knowledge(), other).check_core(kServer)) << number_of(type);
    }
}

// ---- as bytes

std::vector<std::byte> bytes_of(const std::vector<Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {bytes.begin(), bytes.end()};
}

TEST(KnownCalls, SurviveEncoding) {
    const Knowledge& own = codec::own_knowledge();
    const auto read = codec::read_knowledge(codec::known_bytes(own.calls), codec::known_bytes(own.notices));
    ASSERT_TRUE(read) << error_of(read);
    EXPECT_EQ(read->calls, own.calls);
    EXPECT_EQ(read->notices, own.notices);
    EXPECT_LT(own.calls.size(), codec::kMaxKnown / 4);
    EXPECT_TRUE(codec::read_knowledge({}, {})) << "an empty list is valid";
}

// Every build must send the same hash for the same line of tests/data/wire_layout.golden.
TEST(KnownCalls, HashesAreTheSameInEveryBuild) {
    Knowledge own = codec::own_knowledge();
    const Known start = find(own.calls, calls::gpTraceStart::kOpcode);
    const std::uint8_t expected[] = {0x44, 0xf0, 0x01, 0x00, 0xdf, 0xc1, 0x5f, 0xcc};
    EXPECT_EQ(std::memcmp(&start, expected, sizeof expected), 0) << std::hex << start.layout;
    const Known throttle = find(own.notices, number_of(NoticeType::throttle));
    EXPECT_EQ(throttle.layout, 0x23341a73u) << std::hex << throttle.layout;
}

TEST(KnownCalls, InvalidListsAreRefused) {
    const std::vector<Known> good = {{1, 1, 1}, {5, 1, 1}, {9, 1, 1}};
    const auto refused = [](std::span<const std::byte> list, const std::string& why) {
        for (const bool as_notices : {false, true}) {
            const auto read = as_notices ? codec::read_knowledge({}, list) : codec::read_knowledge(list, {});
            EXPECT_NE(error_of(read).find(why), std::string::npos) << why << ": " << error_of(read);
            EXPECT_NE(error_of(read).find(as_notices ? "notices" : "calls"), std::string::npos) << error_of(read);
        }
    };
    EXPECT_TRUE(codec::read_knowledge(bytes_of(good), bytes_of(good)));
    for (std::size_t bytes = 1; bytes < 3 * sizeof(Known); ++bytes) {
        if (bytes % sizeof(Known) != 0) {
            refused(std::span<const std::byte>(bytes_of(good)).first(bytes), "ends within an entry");
        }
    }
    refused(bytes_of({{1, 1, 1}, {1, 1, 2}}), "order");
    refused(bytes_of({{5, 1, 1}, {1, 1, 1}}), "order");
    refused(bytes_of({{1, 1, 1}, {5, 1, 1}, {4, 1, 1}}), "order");
    std::vector<Known> all;
    for (std::uint16_t number = 0; number < codec::kMaxKnown; ++number) {
        all.push_back({number, 1, 1});
    }
    EXPECT_TRUE(codec::read_knowledge(bytes_of(all), bytes_of(all)));
    all.push_back({0xffff, 1, 1});
    refused(bytes_of(all), "more than 4096 entries");
}

// ---- structs of gpupool's in layouts

struct Range {
    std::uint32_t begin, end;
};
GP_MEMBERS(Range, begin, end);
struct SwappedRange {
    std::uint32_t end, begin;
};
GP_MEMBERS(SwappedRange, end, begin);
struct SignedRange {
    std::int32_t begin, end;
};
GP_MEMBERS(SignedRange, begin, end);
struct Nested {
    CUevent event;
    Range ranges[2];
    CUmemLocation location;
    float share;
    codec::ReplyKind kind;
    std::uint16_t reserved;
};
GP_MEMBERS(Nested, event, ranges, location, share, kind, reserved);

template <class T>
codec::LayoutLine line_with() {
    return {.text = "1 call in:" + std::to_string(sizeof(T)) + codec::members_text(kMembers<T>)};
}

TEST(Layout, OfStructHasItsMembers) {
    EXPECT_EQ(line_with<Range>().text, "1 call in:8{begin@0:u4 end@4:u4}");
    EXPECT_EQ(line_with<Nested>().text,
              "1 call in:40{event@0:h8 ranges@8:{begin@0:u4 end@4:u4}[2] location@24:s8 share@32:f4 kind@36:u2 "
              "reserved@38:u2}");
}

TEST(Layout, DiffersIfMembersOfEqualSizeDiffer) {
    EXPECT_NE(line_with<Range>().hash(), line_with<SwappedRange>().hash());
    EXPECT_NE(line_with<Range>().hash(), line_with<SignedRange>().hash());
}

// What GP_MEMBERS asserts.
struct Padded {
    std::uint64_t bytes;
    std::uint32_t count;
};
constexpr Member kBegin = detail::member<std::uint32_t>("begin", offsetof(Range, begin));
constexpr Member kEnd = detail::member<std::uint32_t>("end", offsetof(Range, end));
static_assert(cover(std::array{kBegin, kEnd}, sizeof(Range)));
static_assert(!cover(std::array{kEnd, kBegin}, sizeof(Range)), "another order than the struct");
static_assert(!cover(std::array{kBegin}, sizeof(Range)), "the last member is missing");
static_assert(!cover(std::array{kEnd}, sizeof(Range)), "the first member is missing");
static_assert(!cover(std::array{detail::member<std::uint64_t>("bytes", offsetof(Padded, bytes)),
                                detail::member<std::uint32_t>("count", offsetof(Padded, count))},
                     sizeof(Padded)),
              "padding");

// ---- behaviour

struct Plain {
    static constexpr auto kRules = calls::rule_set(calls::served);
};
struct Raised {
    static constexpr auto kRules = calls::rule_set(calls::served, calls::behaviour(3), calls::synchronizes);
};
static_assert(calls::behaviour_of<Plain> == 1);
static_assert(calls::behaviour_of<Raised> == 3);

TEST(KnownCalls, HaveTheBehaviourOfTheirLines) {
    Knowledge own = codec::own_knowledge();
#define GP_CALL(op, symbol, ...)                                                                 \
    if (calls::is_remote<calls::symbol>) {                                                       \
        EXPECT_EQ(find(own.calls, op).behaviour, calls::behaviour_of<calls::symbol>) << #symbol; \
    }
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    for (const Known& notice : own.notices) {
        EXPECT_EQ(notice.behaviour, codec::behaviour_of(static_cast<NoticeType>(notice.number))) << notice.number;
    }
}

}  // namespace
}  // namespace gpupool::test
