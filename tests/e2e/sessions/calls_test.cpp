// The cost of calls that need not wait for the server: no round trips, and no memory allocations in the calling thread.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

struct Counted {
    long long calls = 0, round_trips = 0;
};

// Parses GPUPOOL_SUMMARY's table; by call.
std::map<std::string, Counted> read_calls(const std::string& path) {
    std::map<std::string, Counted> calls;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name, failed, bytes, waited;
        Counted counted;
        if (words >> name >> counted.calls >> failed >> bytes >> waited >> counted.round_trips) {
            calls[name] = counted;
        }
    }
    return calls;
}

class Calls : public SessionTest {
  protected:
    std::map<std::string, Counted> run(const std::string& mode, std::vector<std::string> environment = {}) {
        const TemporaryFolder folder;
        const std::string summary = folder.path() + "/summary";
        environment.push_back("GPUPOOL_SUMMARY=" + summary);
        Program program(*daemon_, session_program(mode), environment);
        EXPECT_TRUE(program.succeeds());
        said_ = program.output();
        return read_calls(summary);
    }

    std::string said_;
};

// On a local GPU the first launch loads the library, and that waits for the GPU, but the look-up of a kernel does not.
TEST_F(Calls, KernelLookupDoesNotWaitForTheGpu) {
    for (const char* const transport : {"tcp", "shm"}) {
        Program program(*daemon_, session_program("kernels_beside_work"),
                        {std::string("GPUPOOL_TRANSPORT=") + transport});
        EXPECT_EQ(program.number("waited"), 0) << transport;
        EXPECT_TRUE(program.succeeds()) << transport;
    }
}

TEST_F(Calls, StreamDestroyedWhileCapturingStillRunsItsWork) {
    for (const char* const transport : {"tcp", "shm"}) {
        Program program(*daemon_, session_program("destroyed_in_capture"),
                        {std::string("GPUPOOL_TRANSPORT=") + transport});
        EXPECT_TRUE(program.succeeds()) << transport;
        EXPECT_EQ(program.number("joined", milliseconds(0)), 9) << transport;
        EXPECT_EQ(program.number("word", milliseconds(0)), 7) << transport;
    }
}

TEST_F(Calls, RepeatedQueriesNeedFewRoundTrips) {
    std::map<std::string, Counted> calls = run("polls");
    for (const char* const name : {"cuStreamQuery", "cuEventQuery"}) {
        EXPECT_GT(calls[name].calls, 1000) << name;
        EXPECT_GE(calls[name].round_trips, 1) << name;
        EXPECT_LE(calls[name].round_trips, 10) << name;  // any other message from the worker may cost a round trip
    }
}

TEST_F(Calls, DeferredCallsNeedNoRoundTrips) {
    std::map<std::string, Counted> calls = run("deferred");
    for (const char* const name : {"cuLaunchKernel", "cuMemsetD32Async", "cuEventRecord", "cuStreamWaitEvent"}) {
        EXPECT_EQ(calls[name].calls, 2600) << name;
        EXPECT_LE(calls[name].round_trips, 0) << name;
    }
}

TEST_F(Calls, BatchesOfCopiesNeedNoRoundTrips) {
    std::map<std::string, Counted> calls = run("batches");
    EXPECT_EQ(calls["cuMemcpyBatchAsync_v2"].calls, 10);
    EXPECT_EQ(calls["cuMemcpyBatchAsync_v2"].round_trips, 0);
}

TEST_F(Calls, GraphConstructionNeedsNoRoundTrips) {
    std::map<std::string, Counted> calls = run("graphs");
    EXPECT_EQ(said_, "word 2400\n");
    for (const auto& [name, times] : {std::pair{"cuGraphCreate", 20},
                                      {"cuGraphAddMemsetNode", 20},
                                      {"cuGraphAddMemcpyNode", 20},
                                      {"cuGraphAddKernelNode_v2", 200},
                                      {"cuGraphAddEmptyNode", 20},
                                      {"cuGraphKernelNodeSetParams_v2", 20},
                                      {"cuGraphExecKernelNodeSetParams_v2", 20},
                                      {"cuGraphNodeSetEnabled", 20},
                                      {"cuGraphLaunch", 40},
                                      {"cuGraphExecDestroy", 20},
                                      {"cuGraphDestroy", 20}}) {
        EXPECT_EQ(calls[name].calls, times) << name;
        EXPECT_EQ(calls[name].round_trips, 0) << name;
    }
}

// A wait for a stream also reports failures in streams that it has waited for by way of events.
TEST_F(Calls, FailuresAreReportedAcrossEventWaits) {
    Program program(*daemon_, session_program("failure_waited_for"));
    EXPECT_TRUE(program.succeeds(milliseconds(30000))) << program.errors();
}

TEST_F(Calls, StreamOrderedFreeOfOrdinaryMemoryDoesNotWait) {
    Program program(*daemon_, session_program("freed_behind_work"));
    EXPECT_TRUE(program.succeeds(milliseconds(30000))) << program.errors();
}

TEST_F(Calls, EndedContextCannotBeDetached) {
    Program program(*daemon_, session_program("detached"));
    EXPECT_TRUE(program.succeeds(milliseconds(30000))) << program.errors();
}

TEST_F(Calls, FailedCallsInACaptureGiveNoGraph) {
    Program program(*daemon_, session_program("failed_captures"));
    EXPECT_TRUE(program.succeeds(milliseconds(30000))) << program.errors();
}

TEST_F(Calls, DeferredCallsDoNotAllocate) {
    // Over shared memory, if the process has enough processors, the thread that makes a call also sends it.
    for (const std::vector<std::string>& environment :
         {std::vector<std::string>{}, {"GPUPOOL_TRANSPORT=shm", "GPUPOOL_SPIN=always"}}) {
        // Per 10,000 calls. Stream-ordered frees put a fence behind every so many blocks.
        for (const auto& [mode, most] : {std::pair{"deferred", 100}, {"allocating", 1000}}) {
            run(mode, environment);
            if (said_.starts_with("uncounted")) {
                GTEST_SKIP() << "allocations are counted only under a sanitizer";
            }
            long long allocations = -1;
            ASSERT_EQ(std::sscanf(said_.c_str(), "allocations %lld", &allocations), 1) << said_;
            EXPECT_LT(allocations, most) << mode << ' ' << environment.size();
        }
    }
}

}  // namespace
}  // namespace gpupool::test
