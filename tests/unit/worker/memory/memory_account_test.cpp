// Accounts of device memory: sessions of a job share one quota for each device, and a killed session leaves nothing.
#include "server/worker/memory/memory_account.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpupool::worker {
namespace {

using supervision::JobAccount;

constexpr std::uint64_t kMiB = 1u << 20;

JobAccount job(std::vector<std::uint64_t> quotas) {
    std::vector<supervision::AccountDevice> devices;
    for (const std::uint64_t quota : quotas) {
        devices.push_back({"GPU-" + std::to_string(devices.size()), quota, 0});
    }
    return std::move(*JobAccount::make(devices));
}

// What another process has of the account.
JobAccount other_end(const JobAccount& account) {
    return std::move(*JobAccount::adopt(UniqueFd(::fcntl(account.descriptor(), F_DUPFD_CLOEXEC, 0))));
}

TEST(MemoryAccount, SessionsOfAJobShareOneQuota) {
    JobAccount daemon = job({64 * kMiB});
    MemoryAccount first(other_end(daemon), 0, {0}), second(other_end(daemon), 1, {0});
    EXPECT_TRUE(first.charge(0, 40 * kMiB));
    EXPECT_EQ(second.free_bytes(0), 24 * kMiB);
    EXPECT_FALSE(second.charge(0, 24 * kMiB + 1));
    EXPECT_TRUE(second.charge(0, 24 * kMiB));
    EXPECT_FALSE(first.fits(0, 1));
    EXPECT_EQ(first.used_bytes(0), 40 * kMiB);
    EXPECT_EQ(daemon.used_bytes(0), 64 * kMiB);
    daemon.clear(0);
    EXPECT_TRUE(second.charge(0, 40 * kMiB));
}

// A failure seen in sharing systems: only the first GPU was limited.
TEST(MemoryAccount, OnlyTheFirstGpuLimited) {
    JobAccount daemon = job({64 * kMiB, 32 * kMiB, 0});
    MemoryAccount session(other_end(daemon), 3, {2, 0, 1});  // sees the devices in another order
    EXPECT_EQ(session.quota_bytes(0), 0u);
    EXPECT_TRUE(session.charge(0, 1000 * kMiB)) << "no quota";
    EXPECT_FALSE(session.charge(1, 65 * kMiB));
    EXPECT_TRUE(session.charge(1, 64 * kMiB));
    EXPECT_FALSE(session.charge(2, 33 * kMiB));
    EXPECT_TRUE(session.charge(2, 32 * kMiB));
    EXPECT_EQ(session.used(), (std::vector<std::uint64_t>{1000 * kMiB, 64 * kMiB, 32 * kMiB}));
    EXPECT_FALSE(session.charge(3, 1)) << "no such device";
}

// A failure seen in sharing systems: an account below zero showed 17 TB as used.
TEST(MemoryAccount, UnderflowShowing17TbUsed) {
    MemoryAccount account(1, 64 * kMiB);
    EXPECT_TRUE(account.charge(0, kMiB));
    account.release(0, 2 * kMiB);
    EXPECT_EQ(account.used_bytes(0), 0u);
    EXPECT_EQ(account.free_bytes(0), 64 * kMiB);
    account.force(0, ~std::uint64_t{0});
    account.force(0, 2);
    EXPECT_EQ(account.used_bytes(0), ~std::uint64_t{0});
    EXPECT_EQ(account.free_bytes(0), 0u);
}

// A failure seen in sharing systems: shared memory of a process that crashed was stale. The process may die anywhere,
// also while it holds the account's lock.
TEST(MemoryAccount, StaleSharedMemoryAfterACrash) {
    JobAccount daemon = job({64 * kMiB});
    MemoryAccount survivor(other_end(daemon), 1, {0});
    for (int round = 0; round < 40; ++round) {
        const pid_t child = ::fork();
        if (child == 0) {
            while (true) {
                daemon.take(0, 0, 48 * kMiB);
                daemon.give_back(0, 0, 48 * kMiB);
            }
        }
        while (daemon.used_bytes(0) == 0) {  // until it works
        }
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        daemon.clear(0);
        ASSERT_TRUE(survivor.charge(0, 64 * kMiB)) << round;
        survivor.release(0, 64 * kMiB);
    }
}

TEST(MemoryAccount, OtherMemoryIsNoAccount) {
    UniqueFd small(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_FALSE(JobAccount::adopt(std::move(small)));
    EXPECT_FALSE(JobAccount::adopt(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))));
    EXPECT_FALSE(JobAccount::make(std::vector<supervision::AccountDevice>(JobAccount::kMaxDevices + 1)));
}

}  // namespace
}  // namespace gpupool::worker
