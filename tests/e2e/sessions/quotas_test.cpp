// Quotas of device memory, over real processes: what a program sees and may allocate, what its job's processes share,
// and how many programs a server admits. Tests with names of failures are such that were seen in systems that share
// GPUs.

#include <signal.h>

#include <memory>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

class Quotas : public ::testing::Test {
  protected:
    void start(const std::string& settings, std::vector<std::string> environment = {}) {
        daemon_ = std::make_unique<Daemon>(session_settings(settings), std::move(environment));
    }
    // `environment` besides the program's own.
    std::unique_ptr<Program> run(const std::string& mode, std::uint64_t quota_bytes,
                                 std::vector<std::string> environment = {}, std::uint64_t held_bytes = 0) const {
        environment.push_back("QUOTA=" + std::to_string(quota_bytes));
        environment.push_back("HELD=" + std::to_string(held_bytes));
        return std::make_unique<Program>(*daemon_, session_program(mode), environment);
    }

    std::unique_ptr<Daemon> daemon_;
};

TEST_F(Quotas, QuotaShownAsTheWholeGpu) {
    start("[limits]\nsession_memory = \"64MiB\"\n");
    EXPECT_TRUE(run("quota_shown", 64 * kMiB)->succeeds());
    EXPECT_TRUE(run("quota_shown", 32 * kMiB, {"GPUPOOL_MEMORY=33MiB"})->succeeds()) << "a whole number of granules";
    EXPECT_TRUE(run("quota_shown", 64 * kMiB, {"GPUPOOL_MEMORY=1GiB"})->succeeds()) << "not more than the server's";
}

TEST_F(Quotas, WithoutAQuotaTheDeviceHasItsOwnSize) {
    start("", {"GPUPOOL_SOFTGPU_MEMORY=256M"});
    EXPECT_TRUE(run("quota_shown", 256 * kMiB)->succeeds());
    EXPECT_TRUE(run("quota_shown", 64 * kMiB, {"GPUPOOL_MEMORY=64MiB"})->succeeds());
}

TEST_F(Quotas, OnlyTheFirstGpuLimited) {
    start("[limits]\nsession_memory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_DEVICES=2"});
    EXPECT_TRUE(run("quota_devices", 64 * kMiB)->succeeds());
}

// Devices have quotas of different sizes; a session gets the smaller of what it asks for and what the server allows.
TEST_F(Quotas, EachDeviceHasItsOwn) {
    const auto each = [&](std::uint64_t first, std::uint64_t second, const std::string& asked) {
        return run("quota_each", first * kMiB, {"GPUPOOL_MEMORY=" + asked}, second * kMiB);
    };
    start("[limits]\nsession_memory = \"64MiB,1=32MiB\"\n",
          {"GPUPOOL_SOFTGPU_DEVICES=2", "GPUPOOL_SOFTGPU_MEMORY=256M"});
    EXPECT_TRUE(each(64, 32, "")->succeeds());
    EXPECT_TRUE(each(48, 32, "48MiB")->succeeds());
    EXPECT_TRUE(each(64, 16, "1=16MiB")->succeeds());
    EXPECT_TRUE(each(16, 32, "1GiB,0=16MiB")->succeeds());
    const auto moved = run("quota_shown", 32 * kMiB, {"CUDA_VISIBLE_DEVICES=1"});
    EXPECT_TRUE(moved->succeeds()) << "the server's numbers, whichever devices the program sees";
    const auto unknown = run("quota_shown", 0, {"GPUPOOL_MEMORY=2=16MiB"});
    EXPECT_NE(unknown->wait(), 0);
    EXPECT_NE(unknown->errors().find("memory of device 2 is asked for"), std::string::npos) << unknown->errors();
    start("[limits]\nsession_memory = \"1=32MiB\"\n", {"GPUPOOL_SOFTGPU_DEVICES=2", "GPUPOOL_SOFTGPU_MEMORY=256M"});
    EXPECT_TRUE(each(256, 32, "")->succeeds()) << "device 0 has no quota";
    EXPECT_TRUE(each(64, 32, "64MiB")->succeeds());
}

// A program can allocate its quota beside its context, and the server admits no more programs than there is memory for.
TEST_F(Quotas, ContextOverheadUncounted) {
    start("[limits]\nsession_memory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_MEMORY=208M", "GPUPOOL_SOFTGPU_CONTEXT=40M"});
    const auto first = run("quota_hold", 0, {}, 64 * kMiB);
    ASSERT_TRUE(first->says("ready"));
    EXPECT_TRUE(run("quota_shown", 64 * kMiB)->succeeds()) << "there is no room for a second";
    start("[limits]\nsession_memory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_MEMORY=206M", "GPUPOOL_SOFTGPU_CONTEXT=40M"});
    const auto only = run("quota_hold", 0, {}, 64 * kMiB);
    ASSERT_TRUE(only->says("ready"));
    const auto second = run("quota_shown", 64 * kMiB);
    EXPECT_NE(second->wait(), 0);
    EXPECT_NE(second->errors().find("are promised to running sessions"), std::string::npos) << second->errors();
    const auto patient = run("quota_shown", 64 * kMiB, {"GPUPOOL_WAIT_WHEN_FULL=60s"});
    only->end_input();
    EXPECT_TRUE(only->succeeds());
    EXPECT_TRUE(patient->succeeds());
}

TEST_F(Quotas, ContextOverheadUncountedIfOnlyTheClientAsks) {
    start("", {"GPUPOOL_SOFTGPU_MEMORY=206M", "GPUPOOL_SOFTGPU_CONTEXT=40M"});
    const std::vector<std::string> asks{"GPUPOOL_MEMORY=64MiB"};
    const auto only = run("quota_hold", 0, asks, 64 * kMiB);
    ASSERT_TRUE(only->says("ready"));
    const auto second = run("quota_shown", 64 * kMiB, asks);
    EXPECT_NE(second->wait(), 0) << "there is no room for its context";
    EXPECT_NE(second->errors().find("are promised to running sessions"), std::string::npos) << second->errors();
}

// A quota larger than the device is what the device has beside a context.
TEST_F(Quotas, QuotaOfMoreThanTheDevice) {
    start("[limits]\nsession_memory = \"1GiB\"\n", {"GPUPOOL_SOFTGPU_MEMORY=256M", "GPUPOOL_SOFTGPU_CONTEXT=40M"});
    EXPECT_TRUE(run("quota_shown", 216 * kMiB)->succeeds());
}

// What the driver takes by itself counts, is refused by the call that asks for it, and comes back.
TEST_F(Quotas, GrowthUncounted) {
    start("[limits]\nsession_memory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_PROCESSORS=2"});
    EXPECT_TRUE(run("quota_stacks", 64 * kMiB)->succeeds());
    EXPECT_TRUE(run("quota_code", 64 * kMiB)->succeeds());
    start("[limits]\nsession_memory = \"64MiB\"\n", {"GPUPOOL_SOFTGPU_CONTEXT=20M"});
    EXPECT_TRUE(run("quota_contexts", 64 * kMiB)->succeeds());
}

// Every path counts, in random order and sizes, again and again.
TEST_F(Quotas, StreamOrderedAndVmmAllocationsUncounted) {
    start("[limits]\nsession_memory = \"256MiB\"\n");
    for (const char* transport : {"tcp", "shm"}) {
        Program program(*daemon_, {std::string(GPU_PROGRAMS) + "/quota_rounds", "quota", "rounds=4"},
                        {std::string("GPUPOOL_TRANSPORT=") + transport});
        EXPECT_TRUE(program.succeeds()) << transport;
    }
}

TEST_F(Quotas, FalseOutOfMemory) {
    start("[limits]\nsession_memory = \"64MiB\"\n");
    for (const char* transport : {"tcp", "shm"}) {
        EXPECT_TRUE(run("quota_reuse", 64 * kMiB, {std::string("GPUPOOL_TRANSPORT=") + transport})->succeeds());
    }
}

TEST_F(Quotas, ProcessesOfAJobShareOne) {
    start("[limits]\nsession_memory = \"64MiB\"\n");
    for (const int end : {0, SIGKILL}) {
        const auto first = run("quota_hold", 0, {"GPUPOOL_JOB=job"}, 40 * kMiB);
        ASSERT_TRUE(first->says("ready"));
        EXPECT_TRUE(run("quota_shown", 64 * kMiB, {"GPUPOOL_JOB=other"})->succeeds()) << "another job";
        const auto second = run("quota_share", 64 * kMiB, {"GPUPOOL_JOB=job"}, 40 * kMiB);
        ASSERT_TRUE(second->says("shared"));
        if (end == 0) {
            first->end_input();
            EXPECT_TRUE(first->succeeds());
        } else {
            first->signal(end);
        }
        second->end_input();
        EXPECT_TRUE(second->succeeds());
    }
}

TEST_F(Quotas, AllocationLeaksInTheAccount) {
    start("[limits]\nsession_memory = \"64MiB\"\n");
    const auto second = run("quota_share", 64 * kMiB, {"GPUPOOL_JOB=job"}, 0);
    ASSERT_TRUE(second->says("shared"));
    const auto first = run("quota_hold", 0, {"GPUPOOL_JOB=job"}, 64 * kMiB);
    ASSERT_TRUE(first->says("ready"));
    const auto session = session_of(*daemon_, first->process());
    ::kill(static_cast<pid_t>(session.worker_process_id), SIGKILL);
    second->end_input();
    EXPECT_TRUE(second->succeeds()) << "a killed worker's memory is still charged";
    first->end_input();
    EXPECT_NE(first->wait(), 0);
}

// What NVML shows of a worker beyond its account and a context is logged once, and shown as long as it lasts.
TEST_F(Quotas, DifferenceToNvmlIsShown) {
    const TemporaryFolder folder;
    const std::string file = folder.write("nvml", "");
    start("[limits]\nsession_memory = \"64MiB\"\n",
          {std::string("LD_LIBRARY_PATH=") + FAKE_NVML_FOLDER, "FAKE_NVML=" + file, "GPUPOOL_SOFTGPU_CONTEXT=40M"});
    const auto program = run("quota_hold", 0, {}, 24 * kMiB);
    ASSERT_TRUE(program->says("ready"));
    const auto worker = session_of(*daemon_, program->process()).worker_process_id;
    const auto difference = [&] { return session_of(*daemon_, program->process()).memory_difference_bytes; };
    const auto show = [&](std::uint64_t bytes) {
        (void)folder.write("nvml", std::to_string(worker) + " " + std::to_string(bytes) + "\n");
    };
    show((24 + 40 + 100) * kMiB);
    EXPECT_TRUE(eventually([&] { return difference() == static_cast<std::int64_t>(100 * kMiB); }));
    EXPECT_NE(daemon_->log().find("NVML shows 100 MiB more"), std::string::npos) << daemon_->log();
    show((24 + 40 + 30) * kMiB);
    EXPECT_TRUE(eventually([&] { return difference() == 0; })) << "within the tolerance";
    show(20 * kMiB);
    EXPECT_TRUE(eventually([&] { return difference() == -static_cast<std::int64_t>(44 * kMiB); }));
    program->end_input();
    EXPECT_TRUE(program->succeeds());
}

// The next daemon has the account that its workers share, and returns what they had.
TEST_F(Quotas, StaleSharedMemoryAfterACrash) {
    start("[limits]\nsession_memory = \"64MiB\"\n");
    const auto first = run("quota_hold", 0, {"GPUPOOL_JOB=job"}, 40 * kMiB);
    ASSERT_TRUE(first->says("ready"));
    daemon_->kill_hard();
    daemon_->start();
    daemon_->sessions(1);
    const auto second = run("quota_share", 64 * kMiB, {"GPUPOOL_JOB=job"}, 40 * kMiB);
    ASSERT_TRUE(second->says("shared"));
    first->signal(SIGKILL);
    second->end_input();
    EXPECT_TRUE(second->succeeds());
}

}  // namespace
}  // namespace gpupool::test
