// What a session asks for, what it got, and its place in the queue, as messages.
#include "protocol/messages/session.h"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include "protocol/messages/text.h"

namespace gpupool::messages {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Result<Wishes> through_message(const Wishes& wishes) {
    capnp::MallocMessageBuilder message;
    auto request = message.initRoot<schema::SessionRequest>();
    write_wishes(wishes, request);
    return read_wishes(request.asReader());
}

TEST(SessionMessages, WishesSurvive) {
    for (const Wishes& wishes : {Wishes{}, Wishes{2, SessionClass::exclusive, 0, std::chrono::seconds(30)},
                                 Wishes{64, SessionClass::shared, 100, kMaxWait}}) {
        const auto read = through_message(wishes);
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(*read, wishes);
    }
}

TEST(SessionMessages, AClientThatKnowsNoWishesHasNone) {
    capnp::MallocMessageBuilder message;
    EXPECT_EQ(*read_wishes(message.initRoot<schema::SessionRequest>().asReader()), Wishes());
}

TEST(SessionMessages, WishesBeyondTheLimitsAreRefused) {
    capnp::MallocMessageBuilder message;
    auto request = message.initRoot<schema::SessionRequest>();
    request.setGpus(65);
    EXPECT_FALSE(read_wishes(request.asReader()));
    request.setGpus(1);
    request.setPriority(101);
    EXPECT_FALSE(read_wishes(request.asReader()));
    request.setPriority(-2);
    EXPECT_FALSE(read_wishes(request.asReader()));
    request.setPriority(-1);
    request.setSessionClass(static_cast<schema::SessionClass>(77));
    EXPECT_FALSE(read_wishes(request.asReader()));
    request.setSessionClass(schema::SessionClass::SHARED);
    request.setWaitMilliseconds(UINT32_MAX);
    const auto read = read_wishes(request.asReader());
    ASSERT_TRUE(read);
    EXPECT_EQ(read->wait, kMaxWait);
}

TEST(SessionMessages, AGrantSurvivesAndIsDescribed) {
    const Grant grant{"alice", {0, 3}, {8 * kGiB, 8 * kGiB}, SessionClass::exclusive, 50};
    capnp::MallocMessageBuilder message;
    auto welcome = message.initRoot<schema::Welcome>();
    EXPECT_FALSE(welcome.hasGrant());
    write_grant(grant, welcome.initGrant());
    const auto read = read_grant(welcome.getGrant().asReader());
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, grant);
    EXPECT_EQ(describe(grant), "2 GPUs (0, 3 of the server) with 8 GiB each, exclusive, priority 50, as tenant alice");
    EXPECT_EQ(describe({"", {1}, {0}, SessionClass::shared, 7}), "1 GPU (1 of the server), shared, priority 7");
    EXPECT_EQ(describe({"", {0, 1}, {kGiB, 0}, SessionClass::shared, 7}),
              "2 GPUs (0, 1 of the server) with 1 GiB, no quota, shared, priority 7");
}

TEST(SessionMessages, AHostileGrantIsRefused) {
    capnp::MallocMessageBuilder message;
    auto grant = message.initRoot<schema::Grant>();
    grant.initDevices(1000);
    EXPECT_FALSE(read_grant(grant.asReader()));
    grant.initDevices(1);
    grant.setTenant(std::string(kMaxTextBytes + 1, 'a').c_str());
    EXPECT_FALSE(read_grant(grant.asReader()));
    grant.setTenant("a\x1b[2J");
    EXPECT_EQ(read_grant(grant.asReader())->tenant, "a?[2J");
}

TEST(SessionMessages, APlaceInTheQueueSurvives) {
    const Waiting waiting{3, 7, "device 0 is full"};
    const auto read = read_waiting(waiting_payload(waiting));
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, waiting);
    EXPECT_TRUE(read_waiting(waiting_payload({1, 1, std::string(10 * kMaxSentenceBytes, 'x')})));
    EXPECT_FALSE(read_waiting({}));
    EXPECT_FALSE(read_waiting(std::vector<std::byte>(16)));
    capnp::MallocMessageBuilder other;
    other.initRoot<schema::Control>().setStatusRequest();
    EXPECT_FALSE(read_waiting(payload_of(other)));
}

}  // namespace
}  // namespace gpupool::messages
