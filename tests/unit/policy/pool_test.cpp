// Placement and admission: the GPUs of sessions, their order in the queue, refusals.
#include "tests/unit/policy/pool_fixture.h"

namespace gpupool::policy {
namespace {

constexpr const char* kExclusiveAllowed = "[tenants]\nclass = \"exclusive\"\n";

TEST(Placement, SpreadTakesTheEmptiestAndPackTheFullest) {
    TestPool spread({80, 80, 80}, "[placement]\npolicy = \"spread\"");
    EXPECT_EQ(spread.ask(wish("a", 10, 1)), "a: 0");
    EXPECT_EQ(spread.ask(wish("b", 10, 1)), "b: 1");
    EXPECT_EQ(spread.ask(wish("c", 20, 1)), "c: 2");
    EXPECT_EQ(spread.ask(wish("d", 10, 1)), "d: 0");
    EXPECT_EQ(spread.ask(wish("e", 10, 2)), "e: 1 2");

    TestPool pack({80, 80, 80}, "[placement]\npolicy = \"pack\"");
    EXPECT_EQ(pack.ask(wish("a", 10, 1)), "a: 0");
    EXPECT_EQ(pack.ask(wish("b", 10, 1)), "b: 0");
    EXPECT_EQ(pack.ask(wish("c", 60, 1)), "c: 1");
    EXPECT_EQ(pack.ask(wish("d", 10, 1)), "d: 1");
    EXPECT_EQ(pack.ask(wish("e", 10, 2)), "e: 0 2");
}

TEST(Placement, MemoryThatSessionsUseCountsForTheChoice) {
    TestPool pool({80, 80}, "");
    pool.pool.set_used(0, 50 * kGiB);
    EXPECT_EQ(pool.ask(wish("a", 10, 1)), "a: 1");
}

TEST(Placement, SessionsWithoutQuotasAreSpreadByTheirNumber) {
    TestPool pool({80, 80}, "[tenants]\ngpus = 1");
    EXPECT_EQ(pool.ask(wish("a")), "a: 0");
    EXPECT_EQ(pool.ask(wish("b")), "b: 1");
    EXPECT_EQ(pool.ask(wish("c")), "c: 0");
    EXPECT_EQ(pool.pool.promised_bytes(0), 0U);
}

TEST(Placement, ALargeRequestGetsLargeEnoughDevices) {
    TestPool pool({24, 80, 24}, "[placement]\npolicy = \"pack\"");
    EXPECT_EQ(pool.ask(wish("a", 40, 1)), "a: 1");
    EXPECT_EQ(pool.ask(wish("b", 40, 2)), "b: refused");
    EXPECT_EQ(pool.last_text,
              "2 GPUs with 40 GiB each are asked for: 1 of the server's 3 are large enough, and the largest has "
              "79 GiB beside a context");
}

TEST(Placement, WithoutANumberASessionGetsAllAndIsPromisedWhatItSees) {
    TestPool pool({80, 80, 80}, "");
    EXPECT_EQ(pool.ask(wish("a", 10)), "a: 0 1 2");
    EXPECT_EQ(pool.ask(seeing("1", wish("b", 60))), "b: 0 1 2");
    EXPECT_EQ(pool.pool.promised_bytes(0), 11 * kGiB);
    EXPECT_EQ(pool.pool.promised_bytes(1), 72 * kGiB);
    EXPECT_EQ(pool.pool.find("b")->seen, std::vector<std::size_t>{1});
    EXPECT_EQ(pool.ask(seeing("", wish("c", 60))), "c: 0 1 2");
    EXPECT_TRUE(pool.pool.find("c")->seen.empty());
    EXPECT_EQ(pool.end("a") + pool.end("b") + pool.end("c"), "");
    EXPECT_EQ(pool.pool.promised_bytes(0) + pool.pool.promised_bytes(1), 0U);
    EXPECT_EQ(pool.pool.use_of("alice"), TenantUse());
}

TEST(Placement, VisibleDevicesChooseWithinWhatWasPlaced) {
    TestPool pool({80, 80, 80}, "");
    EXPECT_EQ(pool.ask(wish("a", 70, 1)), "a: 0");
    EXPECT_EQ(pool.ask(seeing("1", wish("b", 10, 2))), "b: 1 2");
    EXPECT_EQ(pool.pool.find("b")->seen, std::vector<std::size_t>{2});
    EXPECT_EQ(pool.pool.promised_bytes(1), 10 * kGiB);  // the quota, but no context
    EXPECT_EQ(pool.pool.promised_bytes(2), 11 * kGiB);
}

TEST(Placement, WorkersInStockCount) {
    TestPool pool({80}, "");
    pool.pool.set_aside(0, 2 * kGiB);
    EXPECT_EQ(pool.ask(wish("a", 78, 1)), "a: refused");
    EXPECT_EQ(pool.ask(wish("b", 77, 1)), "b: 0");
    EXPECT_EQ(pool.pool.promised_bytes(0), 80 * kGiB);
    EXPECT_EQ(pool.ask(wish("c", 1, 1)), "c: waits 1/1");
    pool.pool.set_aside(0, 0);
    EXPECT_EQ(pool.decisions(), "c: 0");
}

TEST(Limits, AClientAsksForLessAndNeverGetsMore) {
    TestPool pool({80, 80, 80, 80}, "[tenants]\ngpus = 2\nmemory = \"20GiB,1=5GiB\"\npriority = 40");
    EXPECT_EQ(pool.ask(wish("a", 60, 2)), "a: 0 1");
    EXPECT_EQ(pool.pool.find("a")->memory_bytes, (std::vector<std::uint64_t>{20 * kGiB, 5 * kGiB}));
    EXPECT_EQ(pool.ask(with_priority(90, wish("b", 1, 1))), "b: 2");
    EXPECT_EQ(pool.pool.find("b")->priority, 40U);
    EXPECT_EQ(pool.ask(with_priority(7, wish("c", 1, 1))), "c: 3");
    EXPECT_EQ(pool.pool.find("c")->priority, 7U);
    EXPECT_EQ(pool.ask(wish("d", 1, 3)), "d: refused");
    EXPECT_EQ(pool.last_text, "3 GPUs are asked for, and tenant alice may have 2 at most (gpus)");
    EXPECT_EQ(pool.ask(exclusive(wish("e"))), "e: refused");
    EXPECT_EQ(pool.last_text, "an exclusive GPU is asked for, and tenant alice may have only shared ones (class)");
    EXPECT_EQ(pool.ask(wish("f", 1, 5)), "f: refused");
    EXPECT_EQ(pool.last_text, "5 GPUs are asked for, and the server has 4");
    Request by_number = wish("g", 1, 1);
    by_number.wishes.memory.of_device[1] = kGiB;
    EXPECT_EQ(pool.ask(by_number), "g: refused");
    by_number.wishes.gpus.reset();
    by_number.wishes.memory.of_device[4] = kGiB;
    EXPECT_EQ(pool.ask(by_number), "g: refused");
    EXPECT_EQ(pool.last_text, "memory of device 4 is asked for, and the server has 4");
}

TEST(Limits, DefaultsHoldForWhoAsksForNothing) {
    TestPool pool({80, 80}, "[tenants]\ndefault_gpus = 1\nmemory = \"40GiB\"\ndefault_memory = \"8GiB\"");
    EXPECT_EQ(pool.ask(wish("a")), "a: 0");
    EXPECT_EQ(pool.pool.find("a")->memory_bytes, std::vector<std::uint64_t>{8 * kGiB});
    EXPECT_EQ(pool.ask(wish("b", 50, 2)), "b: 0 1");
    EXPECT_EQ(pool.pool.find("b")->memory_bytes, (std::vector<std::uint64_t>{40 * kGiB, 40 * kGiB}));
}

TEST(Limits, OfATenantInAll) {
    TestPool pool({80, 80, 80, 80},
                  "[tenants]\nsessions = 2\n[tenant.bob]\ntotal_gpus = 3\n[tenant.carol]\n"
                  "total_memory = \"50GiB\"\n[tenant.dave]\nsessions = 0");
    EXPECT_EQ(pool.ask(wish("a1", 1, 1)), "a1: 0");
    EXPECT_EQ(pool.ask(wish("a2", 1, 1)), "a2: 1");
    EXPECT_EQ(pool.ask(wish("a3", 1, 1)), "a3: waits 1/1");
    EXPECT_EQ(pool.last_text,
              "tenant alice has 2 of 2 sessions, the most that its limits allow beside what waits: wait "
              "for one of its sessions to end");
    EXPECT_EQ(pool.ask(wish("b1", 1, 2, "bob")), "b1: 2 3");
    EXPECT_EQ(pool.ask(wish("b2", 1, 2, "bob")), "b2: waits 2/2");
    EXPECT_EQ(pool.ask(wish("b3", 1, 4, "bob")), "b3: refused");
    EXPECT_EQ(pool.ask(wish("c1", 20, 2, "carol")), "c1: 0 1");
    EXPECT_EQ(pool.ask(wish("c2", 20, 1, "carol")), "c2: waits 3/3");
    EXPECT_EQ(pool.ask(wish("c3", 51, 1, "carol")), "c3: refused");
    EXPECT_EQ(pool.ask(wish("c4", 0, 1, "carol")), "c4: refused");  // without a quota it may take a whole device
    EXPECT_EQ(pool.ask(wish("d", 1, 1, "dave")), "d: refused");
    EXPECT_EQ(pool.end("c1"), "c2: 0");
    EXPECT_EQ(pool.end("a1"), "a3: 1, b2: waits 1/1");
    EXPECT_EQ(pool.end("b1"), "b2: 2 3");
}

TEST(Limits, ATenantsOwnLimitsHoldUpOnlyItself) {
    TestPool pool({80}, "[tenants]\ntotal_memory = \"40GiB\"");
    EXPECT_EQ(pool.ask(wish("a1", 30, 1)), "a1: 0");
    EXPECT_EQ(pool.ask(wish("a2", 20, 1)), "a2: waits 1/1");
    EXPECT_EQ(pool.ask(wish("a3", 5, 1)), "a3: waits 2/2");  // does not overtake a2, which it could starve
    EXPECT_EQ(pool.ask(wish("b1", 20, 1, "bob")), "b1: 0");
    EXPECT_EQ(pool.end("a1"), "a2: 0, a3: 0");
}

TEST(Limits, OfTheServer) {
    TestPool pool({80}, "[limits]\nsessions = 2");
    EXPECT_EQ(pool.ask(wish("a")), "a: 0");
    EXPECT_EQ(pool.ask(wish("b")), "b: 0");
    EXPECT_EQ(pool.ask(at_once(wish("c"))), "c: refused for now");
    EXPECT_EQ(pool.last_text, "all 2 sessions of the server are in use (limits.sessions)");
    EXPECT_EQ(pool.ask(wish("d")), "d: waits 1/1");
    EXPECT_EQ(pool.end("a"), "d: 0");
}

TEST(Promises, NeverPassTheDevice) {
    TestPool pool({80}, "");
    EXPECT_EQ(pool.ask(wish("a", 39, 1)), "a: 0");
    EXPECT_EQ(pool.ask(wish("b", 39, 1)), "b: 0");
    EXPECT_EQ(pool.pool.promised_bytes(0), 80 * kGiB);
    EXPECT_EQ(pool.ask(at_once(wish("c", 1, 1))), "c: refused for now");
    EXPECT_EQ(pool.last_text,
              "of the 80 GiB of device 0 (GPU) 80 GiB are promised to running sessions (2 jobs), and a session with a "
              "quota of 1 GiB takes 2 GiB with its context, on 1 GPU: wait for one to end (GPUPOOL_WAIT_WHEN_FULL), or "
              "ask for less (GPUPOOL_MEMORY)");
    EXPECT_EQ(pool.ask(wish("d")), "d: 0");  // is promised nothing
}

TEST(Promises, OvercommitIsTheOperatorsFactor) {
    TestPool pool({80}, "[placement]\novercommit = 1.5");
    EXPECT_EQ(pool.ask(wish("a", 59, 1)), "a: 0");
    EXPECT_EQ(pool.ask(wish("b", 59, 1)), "b: 0");
    EXPECT_EQ(pool.pool.promised_bytes(0), 120 * kGiB);
    EXPECT_EQ(pool.ask(wish("c", 1, 1)), "c: waits 1/1");
    EXPECT_EQ(pool.ask(wish("d", 100, 1)), "d: refused");  // no program can have more than a device
}

TEST(Jobs, ShareOnePromiseAndTheirDevices) {
    TestPool pool({80, 80}, "[placement]\npolicy = \"pack\"");
    EXPECT_EQ(pool.ask(of_job("j", wish("a", 40, 1))), "a: 0");
    EXPECT_EQ(pool.ask(of_job("j", wish("b", 60, 2))), "b: 0");  // its own wishes are ignored
    EXPECT_EQ(pool.pool.promised_bytes(0), 42 * kGiB);
    EXPECT_EQ(pool.pool.use_of("alice"), (TenantUse{2, 1, 40 * kGiB}));
    EXPECT_EQ(pool.end("a"), "");
    EXPECT_EQ(pool.pool.promised_bytes(0), 41 * kGiB);
    EXPECT_EQ(pool.end("b"), "");
    EXPECT_EQ(pool.pool.promised_bytes(0), 0U);
}

TEST(Jobs, FurtherProcessesGoAheadOfTheQueue) {
    TestPool pool({80}, "");
    EXPECT_EQ(pool.ask(of_job("j", wish("a", 40, 1))), "a: 0");
    EXPECT_EQ(pool.ask(wish("b", 38, 1, "bob")), "b: 0");
    EXPECT_EQ(pool.ask(with_priority(50, wish("c", 10, 1, "bob"))), "c: waits 1/1");
    EXPECT_EQ(pool.ask(of_job("j", with_priority(1, wish("d", 40, 1)))), "d: waits 1/2, c: waits 2/2");
    EXPECT_EQ(pool.end("b"), "d: 0, c: 0");
}

TEST(Jobs, WaitForTheirFirstProcess) {
    TestPool pool({80, 80}, "");
    EXPECT_EQ(pool.ask(wish("x", 70, 2)), "x: 0 1");
    EXPECT_EQ(pool.ask(of_job("j", wish("a", 40, 2))), "a: waits 1/1");
    EXPECT_EQ(pool.ask(of_job("j", wish("b", 1, 1))), "b: waits 2/2");
    EXPECT_EQ(pool.last_text, "the first process of its job waits");
    EXPECT_EQ(pool.end("x"), "a: 0 1, b: 0 1");
    EXPECT_EQ(pool.end("a") + pool.end("b"), "");
    EXPECT_EQ(pool.ask(wish("x", 70, 2)), "x: 0 1");
    EXPECT_EQ(pool.ask(of_job("j", wish("a", 40, 2))), "a: waits 1/1");
    EXPECT_EQ(pool.ask(of_job("j", wish("b", 1, 1))), "b: waits 2/2");
    EXPECT_EQ(pool.end("a"), "b: 0");  // now it is the first
}

TEST(Jobs, MayGrowOntoOtherDevicesIfTheyHaveAll) {
    TestPool pool({80, 80}, "");
    EXPECT_EQ(pool.ask(of_job("j", seeing("0", wish("a", 40)))), "a: 0 1");
    EXPECT_EQ(pool.ask(seeing("1", wish("b", 60))), "b: 0 1");
    EXPECT_EQ(pool.ask(of_job("j", seeing("1", wish("c", 40)))), "c: waits 1/1");
    EXPECT_EQ(pool.end("b"), "c: 0 1");
    EXPECT_EQ(pool.pool.promised_bytes(1), 41 * kGiB);
}

TEST(Jobs, HaveALimitOfProcesses) {
    TestPool pool({80}, "[limits]\nsessions = 1000");
    for (std::size_t i = 0; i < Pool::kMaxJobSessions; ++i) {
        ASSERT_EQ(pool.ask(of_job("j", wish("s" + std::to_string(i)))), "s" + std::to_string(i) + ": 0");
    }
    EXPECT_EQ(pool.ask(of_job("j", at_once(wish("more")))), "more: refused for now");
    EXPECT_EQ(pool.last_text, "the job has 256 sessions already, the most that may share one quota");
}

TEST(Exclusive, HasItsGpusAlone) {
    TestPool pool({80, 80, 80}, std::string(kExclusiveAllowed) + "[placement]\npolicy = \"pack\"");
    EXPECT_EQ(pool.ask(wish("a", 1, 1)), "a: 0");
    EXPECT_EQ(pool.ask(exclusive(wish("b", 40, 2))), "b: 1 2");
    EXPECT_EQ(pool.ask(wish("c", 1, 1)), "c: 0");
    EXPECT_EQ(pool.ask(wish("d", 1, 2)), "d: waits 1/1");
    EXPECT_EQ(pool.ask(exclusive(wish("e", 0, 1))), "e: waits 2/2");
    EXPECT_EQ(pool.end("b"), "d: 0 1, e: 2");
    EXPECT_TRUE(pool.pool.is_exclusive(2));
    EXPECT_EQ(pool.ask(at_once(seeing("2", wish("f")))), "f: refused for now");
    EXPECT_EQ(pool.last_text,
              "device 2 (GPU) belongs to an exclusive session, and the session needs 1 GPU: wait for one "
              "to end (GPUPOOL_WAIT_WHEN_FULL), or ask for less (GPUPOOL_MEMORY)");
}

TEST(Exclusive, MayHaveSeveralProcesses) {
    TestPool pool({80}, kExclusiveAllowed);
    EXPECT_EQ(pool.ask(of_job("j", exclusive(wish("a", 0, 1)))), "a: 0");
    EXPECT_EQ(pool.ask(of_job("j", wish("b"))), "b: 0");
    EXPECT_EQ(pool.ask(wish("c")), "c: waits 1/1");
    EXPECT_EQ(pool.end("a"), "");
    EXPECT_EQ(pool.end("b"), "c: 0");
}

TEST(Queue, IsByPriorityThenArrival) {
    TestPool pool({80}, "[tenants]\npriority = 100");
    EXPECT_EQ(pool.ask(wish("x", 79, 1)), "x: 0");
    EXPECT_EQ(pool.ask(with_priority(10, wish("a", 79, 1))), "a: waits 1/1");
    EXPECT_EQ(pool.ask(with_priority(20, wish("b", 79, 1))), "b: waits 1/2, a: waits 2/2");
    EXPECT_EQ(pool.ask(with_priority(20, wish("c", 79, 1))), "c: waits 2/3, a: waits 3/3");
    EXPECT_EQ(pool.end("x"), "b: 0, c: waits 1/2, a: waits 2/2");
    EXPECT_EQ(pool.end("b"), "c: 0, a: waits 1/1");
    EXPECT_EQ(pool.end("c"), "a: 0");
}

TEST(Queue, NobodyOvertakesOnGpusThatAreReserved) {
    TestPool pool({80, 80, 80}, "");
    EXPECT_EQ(pool.ask(wish("x", 70, 1)), "x: 0");
    EXPECT_EQ(pool.ask(wish("y", 50, 1)), "y: 1");
    EXPECT_EQ(pool.ask(wish("z", 60, 1)), "z: 2");
    // Needs two GPUs with 40 GiB: 1 and 2 lack least.
    EXPECT_EQ(pool.ask(wish("large", 40, 2)), "large: waits 1/1");
    EXPECT_EQ(pool.ask(wish("small", 5, 1)), "small: 0");
    EXPECT_EQ(pool.ask(wish("small2", 5, 1)), "small2: waits 2/2");
    EXPECT_NE(pool.last_text.find("device 1 (GPU) 51 GiB are promised to running sessions (1 job), and the rest is "
                                  "kept for a session ahead in the queue"),
              std::string::npos)
        << pool.last_text;
    EXPECT_EQ(pool.end("y"), "");
    EXPECT_EQ(pool.end("z"), "large: 1 2, small2: 1");
}

// A stream of small sessions, each of which would fit, cannot keep a large one out.
TEST(Queue, ALargeSessionIsNotStarvedBySmallOnes) {
    TestPool pool({80, 80}, "");
    int running = 0, next = 0;
    std::map<int, bool> ends;
    const auto start = [&] {
        ++running;
        return pool.ask(wish("s" + std::to_string(next++), 19, 1));
    };
    for (int i = 0; i < 8; ++i) {
        start();
    }
    EXPECT_EQ(pool.ask(wish("large", 60, 1)), "large: waits 1/1");
    bool admitted = false;
    int steps = 0;
    for (int ended = 0; !admitted && steps < 20; ++ended, ++steps) {
        std::string decided = pool.end("s" + std::to_string(ended));
        decided += " " + start();
        admitted = decided.find("large: ") != std::string::npos && decided.find("large: waits") == std::string::npos;
    }
    EXPECT_TRUE(admitted);
    EXPECT_LE(steps, 8);  // no later than all have ended that ran when it came
}

TEST(Queue, IsBoundedInLengthAndTime) {
    TestPool pool({80}, "[placement]\nqueue_length = 2\nqueue_time = \"60s\"");
    EXPECT_EQ(pool.ask(wish("x", 79, 1)), "x: 0");
    EXPECT_EQ(pool.pool.next_deadline_ms(), std::nullopt);
    EXPECT_EQ(pool.ask(wish("a", 79, 1)), "a: waits 1/1");
    pool.now_ms = 1000;
    Request brief = wish("b", 79, 1);
    brief.wishes.wait = milliseconds(500);
    EXPECT_EQ(pool.ask(brief), "b: waits 2/2");
    EXPECT_EQ(pool.ask(wish("c", 79, 1)), "c: refused for now");
    EXPECT_TRUE(pool.last_text.starts_with("2 sessions wait already, the most that may: of the 80 GiB"))
        << pool.last_text;
    EXPECT_EQ(pool.pool.next_deadline_ms(), 1500);
    pool.pool.advance(1499);
    EXPECT_EQ(pool.decisions(), "");
    pool.pool.advance(1500);
    EXPECT_EQ(pool.decisions(), "b: refused for now");
    EXPECT_TRUE(pool.last_text.starts_with("the time to wait for room is over: of the 80 GiB")) << pool.last_text;
    EXPECT_EQ(pool.pool.next_deadline_ms(), 60'000);
    pool.pool.advance(60'000);
    EXPECT_EQ(pool.decisions(), "a: refused for now");
}

TEST(Queue, WhoLeavesItMakesRoomForOthers) {
    TestPool pool({80}, "");
    EXPECT_EQ(pool.ask(wish("x", 40, 1)), "x: 0");
    EXPECT_EQ(pool.ask(wish("a", 79, 1)), "a: waits 1/1");
    EXPECT_EQ(pool.ask(wish("b", 10, 1)), "b: waits 2/2");
    EXPECT_EQ(pool.end("a"), "b: 0");
    EXPECT_EQ(pool.end("unknown"), "");
}

TEST(Queue, WhoDoesNotWaitHoldsUpNobody) {
    TestPool pool({80}, "[tenants]\npriority = 100");
    EXPECT_EQ(pool.ask(wish("x", 40, 1)), "x: 0");
    EXPECT_EQ(pool.ask(at_once(with_priority(100, wish("a", 79, 1)))), "a: refused for now");
    EXPECT_EQ(pool.ask(with_priority(1, wish("b", 10, 1))), "b: 0");
}

TEST(Queue, OfAServerWithoutDevices) {
    TestPool pool({}, "");
    EXPECT_EQ(pool.ask(wish("a")), "a:");
    EXPECT_EQ(pool.ask(wish("b", 0, 1)), "b: refused");
}

}  // namespace
}  // namespace gpupool::policy
