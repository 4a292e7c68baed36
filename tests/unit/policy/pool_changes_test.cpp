// Changes while sessions run and wait: of the policy, of quotas, of the daemon.
#include "tests/unit/policy/pool_fixture.h"

namespace gpupool::policy {
namespace {

TEST(PoolChanges, LowerLimitsEndNoSessionAndHoldForTheNext) {
    TestPool pool({80, 80}, "");
    EXPECT_EQ(pool.ask(wish("a", 40, 2)), "a: 0 1");
    pool.pool.set_policy(make_policy("[tenants]\nmemory = \"10GiB\"\ngpus = 1"));
    EXPECT_EQ(pool.decisions(), "");
    EXPECT_EQ(pool.pool.promised_bytes(0), 41 * kGiB);
    EXPECT_EQ(pool.ask(wish("b", 40, 1)), "b: 0");
    EXPECT_EQ(pool.pool.find("b")->memory_bytes, std::vector<std::uint64_t>{10 * kGiB});
    EXPECT_EQ(pool.ask(wish("c", 1, 2)), "c: refused");
}

TEST(PoolChanges, WaitingSessionsAreJudgedByTheLimitsOfNow) {
    TestPool pool({80}, "");
    EXPECT_EQ(pool.ask(wish("x", 60, 1)), "x: 0");
    EXPECT_EQ(pool.ask(wish("a", 40, 1)), "a: waits 1/1");
    EXPECT_EQ(pool.ask(wish("b", 40, 1, "bob")), "b: waits 2/2");
    pool.pool.set_policy(make_policy("[tenant.alice]\nmemory = \"10GiB\"\n[tenant.bob]\nsessions = 0"));
    EXPECT_EQ(pool.decisions(), "b: refused, a: 0");
}

TEST(PoolChanges, HigherLimitsLetWaitingSessionsIn) {
    TestPool pool({80}, "[tenants]\nsessions = 1\npriority = 10");
    EXPECT_EQ(pool.ask(wish("a", 1, 1)), "a: 0");
    EXPECT_EQ(pool.ask(wish("b", 1, 1)), "b: waits 1/1");
    pool.pool.set_policy(make_policy("[tenants]\nsessions = 2"));
    EXPECT_EQ(pool.decisions(), "b: 0");
    EXPECT_EQ(pool.ask(wish("c", 60, 1, "bob")), "c: 0");
    EXPECT_EQ(pool.ask(wish("d", 60, 1, "bob")), "d: waits 1/1");
    pool.pool.set_policy(make_policy("[placement]\novercommit = 2"));
    EXPECT_EQ(pool.decisions(), "d: 0");
}

TEST(PoolChanges, AnotherPriorityChangesTheOrder) {
    TestPool pool({80}, "");
    EXPECT_EQ(pool.ask(wish("x", 79, 1)), "x: 0");
    EXPECT_EQ(pool.ask(wish("a", 79, 1)), "a: waits 1/1");
    EXPECT_EQ(pool.ask(wish("b", 79, 1, "bob")), "b: waits 2/2");
    pool.pool.set_policy(make_policy("[tenant.bob]\npriority = 60"));
    EXPECT_EQ(pool.decisions(), "b: waits 1/2, a: waits 2/2");
}

TEST(PoolChanges, LessOvercommitEndsNobody) {
    TestPool pool({80}, "[placement]\novercommit = 2");
    EXPECT_EQ(pool.ask(wish("a", 70, 1)), "a: 0");
    EXPECT_EQ(pool.ask(wish("b", 70, 1)), "b: 0");
    pool.pool.set_policy(make_policy(""));
    EXPECT_EQ(pool.ask(wish("c", 10, 1)), "c: waits 1/1");
    EXPECT_EQ(pool.end("a"), "");
    EXPECT_EQ(pool.end("b"), "c: 0");
}

TEST(PoolChanges, AQuotaGrowsIfThereIsRoom) {
    TestPool pool({80, 80}, "[tenant.carol]\ntotal_memory = \"20GiB\"");
    EXPECT_EQ(pool.ask(of_job("j", wish("a", 10, 1))), "a: 0");
    EXPECT_EQ(pool.ask(of_job("j", wish("a2"))), "a2: 0");
    EXPECT_EQ(pool.ask(wish("b", 40, 2)), "b: 0 1");
    Quotas quotas;
    quotas.each_bytes = 37 * kGiB;
    EXPECT_TRUE(pool.pool.change_memory("a2", quotas));
    EXPECT_EQ(pool.pool.promised_bytes(0), 80 * kGiB);
    EXPECT_EQ(pool.pool.find("a")->memory_bytes, std::vector<std::uint64_t>{37 * kGiB});
    quotas.each_bytes = 38 * kGiB;
    const Status more = pool.pool.change_memory("a", quotas);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().message,
              "of the 80 GiB of device 0 (GPU) 41 GiB are promised to others: there is no room for "
              "a quota of 38 GiB");
    EXPECT_EQ(pool.pool.promised_bytes(0), 80 * kGiB);

    EXPECT_EQ(pool.ask(wish("w", 30, 1)), "w: 1");
    EXPECT_EQ(pool.ask(wish("w2", 30, 1)), "w2: waits 1/1");
    quotas.each_bytes = 5 * kGiB;
    EXPECT_TRUE(pool.pool.change_memory("a", quotas));
    EXPECT_EQ(pool.decisions(), "w2: 0");
    EXPECT_TRUE(pool.pool.change_memory("a", Quotas()));  // no quota any more
    EXPECT_EQ(pool.end("a") + pool.end("a2") + pool.end("w2") + pool.end("w") + pool.end("b"), "");
    EXPECT_EQ(pool.pool.promised_bytes(0) + pool.pool.promised_bytes(1), 0U);
    EXPECT_FALSE(pool.pool.change_memory("a", quotas));

    EXPECT_EQ(pool.ask(wish("c", 10, 1, "carol")), "c: 0");
    quotas.each_bytes = 21 * kGiB;
    EXPECT_FALSE(pool.pool.change_memory("c", quotas));
    EXPECT_EQ(pool.pool.use_of("carol").memory_bytes, 10 * kGiB);
}

TEST(PoolChanges, AnotherDaemonsSessionsCountEvenBeyondTheRoom) {
    TestPool pool({80, 80}, "");
    Grant grant{"a", "alice", "j", {1}, {70 * kGiB}, {1}, SessionClass::shared, 50, true};
    pool.pool.adopt(grant);
    grant.session = "b";
    pool.pool.adopt(grant);
    EXPECT_EQ(pool.pool.promised_bytes(1), 72 * kGiB);
    Grant other{"c", "bob", "k", {1, 9}, {70 * kGiB}, {1, 9}, SessionClass::exclusive, 50, true};
    pool.pool.adopt(other);
    EXPECT_EQ(pool.pool.promised_bytes(1), 143 * kGiB);
    EXPECT_EQ(pool.pool.running(), 3U);
    EXPECT_EQ(pool.ask(wish("d", 70, 1)), "d: 0");
    EXPECT_EQ(pool.ask(of_job("j", wish("e"))), "e: waits 1/1");
    EXPECT_EQ(pool.end("c"), "e: 1");
    EXPECT_EQ(pool.end("a") + pool.end("b") + pool.end("e"), "");
    EXPECT_EQ(pool.pool.promised_bytes(1), 0U);
    EXPECT_FALSE(pool.pool.is_exclusive(1));
}

}  // namespace
}  // namespace gpupool::policy
