// An administrator's requests and their answers, as messages.
#include "protocol/messages/administration.h"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include "protocol/messages/text.h"
#include "protocol/schema/control.capnp.h"

namespace gpupool::messages {
namespace {

TEST(AdministrationMessages, RequestsSurvive) {
    const LimitScope alice{LimitScope::Kind::tenant, "alice"}, session{LimitScope::Kind::session, "0123456789abcdef"};
    const std::vector<AdministrationRequest> requests = {
        ListTenants{},
        AddTenant{"alice", false},
        AddTenant{"ops", true},
        RotateToken{"alice", std::chrono::hours(1)},
        RevokeTokens{"alice", 0},
        RevokeTokens{"alice", 7},
        ShowLimits{},
        ShowLimits{alice},
        ChangeLimits{session, {{"memory", "8GiB", ""}, {"gpus", "2", ""}}, {"priority"}},
        EndSession{"0123456789abcdef", "maintenance"},
        ShowUsage{"", 20'000, 20'010},
        ShowUsage{"alice", 0, INT64_MAX},
    };
    for (const auto& request : requests) {
        const auto read = read_request(request_payload(request));
        ASSERT_TRUE(read) << request.index() << ": " << read.error().message;
        EXPECT_EQ(*read, request) << request.index();
        EXPECT_FALSE(read_answer(request_payload(request)));
    }
}

TEST(AdministrationMessages, AnswersSurvive) {
    const std::vector<AdministrationAnswer> answers = {
        AdministrationError{"there is no tenant bob"},
        Done{"all tokens of alice are revoked"},
        TenantList{{{"alice", false, 17, {{1, "0a1b2c3d", 17, 0}, {2, "ffffffff", 18, 99}}, 2, 3, 1u << 30, true},
                    {"ops", true, 18, {}, 0, 0, 0, false}}},
        NewToken{"alice", 3, "gpt-abcdefghijklmnopqrstuvwxyz"},
        LimitList{{{"gpus", "2", "gpupoold.toml:7"}, {"memory", "none", "built in"}}},
        UsageList{{{20'000, "alice", 1, 2, 3, 4, 5}, {20'001, "bob", 0, 0, 0, 0, UINT64_MAX}}},
    };
    for (const auto& answer : answers) {
        const auto read = read_answer(answer_payload(answer));
        ASSERT_TRUE(read) << answer.index() << ": " << read.error().message;
        EXPECT_EQ(*read, answer) << answer.index();
        EXPECT_FALSE(read_request(answer_payload(answer)));
    }
}

TEST(AdministrationMessages, WhatIsTooLargeIsRefused) {
    EXPECT_FALSE(read_request(request_payload(AddTenant{std::string(kMaxTextBytes + 1, 'a'), false})));
    EXPECT_FALSE(read_request(request_payload(EndSession{"s", std::string(kMaxSentenceBytes + 1, 'a')})));
    EXPECT_EQ(
        std::get<RotateToken>(*read_request(request_payload(RotateToken{"a", std::chrono::hours(1'000'000)}))).grace,
        kMaxGrace);
    capnp::MallocMessageBuilder message;
    auto request = message.initRoot<schema::Control>().initAdministrationRequest();
    request.initChangeLimits().initUnset(kMaxChanges + 1);
    EXPECT_FALSE(read_request(payload_of(message)));
    request.initChangeLimits().initSet(kMaxChanges + 1);
    EXPECT_FALSE(read_request(payload_of(message)));
    auto tenants = message.initRoot<schema::Control>().initAdministrationAnswer().initTenants(1);
    tenants[0].initTokens(kMaxTokensListed + 1);
    EXPECT_FALSE(read_answer(payload_of(message)));
}

TEST(AdministrationMessages, TextsOfAPeerCannotSteerATerminal) {
    const auto read = read_answer(answer_payload(Done{"done\x1b]0;title\x07\n"}));
    ASSERT_TRUE(read);
    EXPECT_EQ(std::get<Done>(*read).message, "done?]0;title??");
}

TEST(AdministrationMessages, CutOrChangedMessagesAreRefusedOrRead) {
    const auto good =
        request_payload(ChangeLimits{{LimitScope::Kind::tenant, "alice"}, {{"gpus", "2", ""}}, {"memory"}});
    for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
        (void)read_request(std::span(good).first(bytes));
        auto changed = good;
        changed[bytes] ^= std::byte{0x5a};
        (void)read_request(changed);
        (void)read_answer(changed);
    }
}

}  // namespace
}  // namespace gpupool::messages
