// Small utilities: units, environment, hashes, descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "common/environment.h"
#include "common/hash.h"
#include "common/mutex.h"
#include "common/processors.h"
#include "common/quotas.h"
#include "common/spin.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace gpupool {
namespace {

TEST(Contention, LastsLongerTheMoreOftenItRecurs) {
    using Clock = std::chrono::steady_clock;
    Contention contention;
    const Clock::time_point begin = Clock::now();
    EXPECT_FALSE(contention.lasts(begin));
    Clock::time_point now = begin;
    auto lasting = std::chrono::duration_cast<Clock::duration>(Contention::kShortest);
    for (int i = 0; i < 12; ++i) {
        contention.note(now);
        contention.note(now + lasting / 2);  // the same contention, reported by another thread, counts once
        EXPECT_TRUE(contention.lasts(now + lasting - std::chrono::microseconds(1))) << i;
        EXPECT_FALSE(contention.lasts(now + lasting)) << i;
        now += lasting;
        lasting = std::min<Clock::duration>(2 * lasting, Contention::kLongest);
    }
    now += Contention::kSameWithin * lasting;
    contention.note(now);
    EXPECT_FALSE(contention.lasts(now + Contention::kShortest))
        << "later contention starts with the shortest time again";
}

// The polling thread shares its processor with another.
TEST(Contention, IsDetectedOnASharedProcessor) {
    using Clock = std::chrono::steady_clock;
    std::atomic<bool> over{false};
    bool noted = false;
    std::thread polling([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
        ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        std::thread other([&] {  // inherits the affinity
            while (!over) {
            }
        });
        Contention contention;
        Clock::time_point now = Clock::now();
        const Clock::time_point end = now + std::chrono::seconds(30);
        while (!noted && now < end) {
            const Clock::time_point before = std::exchange(now, Clock::now());
            noted = contention.note_poll(before, now) && contention.lasts(now);
        }
        over = true;
        other.join();
    });
    polling.join();
    EXPECT_TRUE(noted);
}

// A thread that slept or waited for a lock was not preempted.
TEST(Contention, IsNotDetectedAfterASleep) {
    using Clock = std::chrono::steady_clock;
    Mutex mutex;
    Condition condition;
    UniqueLock lock(mutex);
    bool noted = true;
    for (int i = 0; noted && i < 100; ++i) {  // on a loaded machine it may be preempted as well
        Contention contention;
        (void)contention.note_poll(Clock::time_point(), Clock::now());  // the poll before
        const Clock::time_point before = Clock::now();
        (void)condition.wait_for(lock, std::chrono::milliseconds(1));
        noted = contention.note_poll(before, Clock::now());
    }
    EXPECT_FALSE(noted);
}

TEST(Contention, PreventsSpinning) {
    ASSERT_EQ(setenv("GPUPOOL_SPIN", "1", 1), 0);
    ASSERT_TRUE(spinning_pays()) << "spinning_pays() was called before: this test needs its own process";
    Contention contention;
    Spin spin(contention);
    int polls = 0;
    const auto poll = [&] { return ++polls == 50; };
    EXPECT_TRUE(spin.until(poll, std::chrono::seconds(20)));
    polls = 0;
    contention.note(std::chrono::steady_clock::now());
    EXPECT_FALSE(spin.until(poll, std::chrono::seconds(20)));
    EXPECT_EQ(polls, 1);
    // A thread that is already spinning stops as well.
    Contention later;
    Spin spinning(later);
    polls = 0;
    EXPECT_FALSE(spinning.until(
        [&] {
            if (++polls == 20) {
                later.note(std::chrono::steady_clock::now());
            }
            return polls == 1000;
        },
        std::chrono::seconds(20)));
    Contention never(Contention::Matters::no);
    never.note(std::chrono::steady_clock::now());
    EXPECT_FALSE(never.lasts(std::chrono::steady_clock::now()));
}

TEST(Units, Sizes) {
    const std::pair<const char*, std::uint64_t> given[] = {{"0", 0},
                                                           {"4096", 4096},
                                                           {"8GiB", 8ull << 30},
                                                           {"8 gib", 8ull << 30},
                                                           {"512M", 512ull << 20},
                                                           {"1.5G", 3ull << 29},
                                                           {"2GB", 2000000000ull},
                                                           {" 1 kB ", 1000},
                                                           {"3B", 3},
                                                           {"1TiB", 1ull << 40}};
    for (const auto& [text, expected] : given) {
        auto value = parse_bytes(text);
        ASSERT_TRUE(value) << text;
        EXPECT_EQ(*value, expected) << text;
    }
    for (const char* text : {"", "GiB", "-1", "8 Gib x", "0x10", "nan", "inf", "1e3", "99999999TiB", "8GiBs"}) {
        EXPECT_FALSE(parse_bytes(text)) << text;
    }
}

TEST(Quotas, ForEachDeviceAndForSingleOnes) {
    constexpr std::uint64_t kGiB = 1u << 30;
    const auto each = parse_quotas("8GiB");
    ASSERT_TRUE(each);
    EXPECT_EQ(each->bytes(0), 8 * kGiB);
    EXPECT_EQ(each->beyond(0), std::nullopt);
    const auto both = parse_quotas("8GiB,1=4GiB");
    ASSERT_TRUE(both);
    EXPECT_EQ(both->bytes(0), 8 * kGiB);
    EXPECT_EQ(both->bytes(1), 4 * kGiB);
    EXPECT_EQ(both->least_bytes(), 4 * kGiB);
    EXPECT_EQ(both->beyond(1), 1U);
    EXPECT_EQ(both->beyond(2), std::nullopt);
    const auto single = parse_quotas("2=1GiB,0=2GiB");
    ASSERT_TRUE(single);
    EXPECT_EQ(single->bytes(0), 2 * kGiB);
    EXPECT_EQ(single->bytes(1), 0U) << "no quota";
    EXPECT_FALSE(Quotas().any());
    for (const char* text : {"", ",", "8GiB,", "8GiB,4GiB", "0=1GiB,0=1GiB", "=1GiB", "-1=1GiB", "x=1GiB", "64=1GiB",
                             "0=", "0 =1GiB", "1=2=3"}) {
        EXPECT_FALSE(parse_quotas(text)) << text;
    }
}

TEST(Units, Durations) {
    const std::pair<const char*, int> given[] = {
        {"5", 5000}, {"250ms", 250}, {"0.5", 500}, {"2m", 120000}, {"1h", 3600000}};
    for (const auto& [text, expected] : given) {
        auto value = parse_duration(text);
        ASSERT_TRUE(value) << text;
        EXPECT_EQ(value->count(), expected) << text;
    }
    EXPECT_FALSE(parse_duration("5 years"));
    EXPECT_FALSE(parse_duration("soon"));
}

TEST(Units, SizesForPeople) {
    EXPECT_EQ(format_bytes(17), "17 B");
    EXPECT_EQ(format_bytes(8ull << 30), "8 GiB");
    EXPECT_EQ(format_bytes(3ull << 29), "1.5 GiB");
}

TEST(Environment, DistinguishesUnsetFromEmpty) {
    constexpr const char* kName = "GPUPOOL_TEST_VARIABLE";
    ::unsetenv(kName);
    EXPECT_FALSE(environment::raw(kName));
    EXPECT_FALSE(environment::text(kName));
    ::setenv(kName, "", 1);
    EXPECT_EQ(environment::raw(kName), "");
    EXPECT_FALSE(environment::text(kName));
    ::setenv(kName, "1MiB", 1);
    EXPECT_EQ(environment::raw(kName), "1MiB");
    EXPECT_EQ(environment::text(kName), "1MiB");
    ::unsetenv(kName);
}

TEST(Environment, CudaSwitchesAreOnByTheirValue) {
    constexpr const char* kName = "GPUPOOL_TEST_VARIABLE";
    ::unsetenv(kName);
    EXPECT_FALSE(environment::cuda_switch(kName));
    for (const char* value : {"", "0", "01"}) {
        ::setenv(kName, value, 1);
        EXPECT_FALSE(environment::cuda_switch(kName)) << value;
    }
    ::setenv(kName, "1", 1);
    EXPECT_TRUE(environment::cuda_switch(kName));
    ::unsetenv(kName);
}

TEST(Hash, MatchesTheReference) {
    // The XXH3 128-bit reference value for empty input.
    EXPECT_EQ(to_string(fingerprint({})), "99aa06d3014798d86001c324468d497f");
}

bool is_open(int fd) {
    return ::fcntl(fd, F_GETFD) != -1;
}

TEST(UniqueFd, ClosesOnceAndOnlyItsOwn) {
    int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    {
        UniqueFd first(raw);
        UniqueFd second(std::move(first));
        EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
        EXPECT_EQ(second.get(), raw);
        EXPECT_TRUE(is_open(raw));
    }
    EXPECT_FALSE(is_open(raw));
    raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    UniqueFd kept(raw);
    EXPECT_EQ(kept.release(), raw);
    kept.reset();
    EXPECT_TRUE(is_open(raw));
    ::close(raw);
}

// A folder in the format of the kernel's control groups.
class ControlGroups : public testing::Test {
  protected:
    void TearDown() override { std::filesystem::remove_all(mount_); }
    void write(const std::string& file, const std::string& text) {
        const std::filesystem::path path = mount_ + "/" + file;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text << "\n";
    }
    const std::string mount_ = testing::TempDir() + "gpupool-groups-" + std::to_string(::getpid());
};

TEST_F(ControlGroups, SmallestQuotaOnThePathCounts) {
    write("cpu.max", "max 100000");
    EXPECT_EQ(processors_of_quota("0::/\n", mount_), std::nullopt);
    write("slice/cpu.max", "350000 100000");
    write("slice/service/cpu.max", "800000 100000");
    EXPECT_EQ(processors_of_quota("0::/slice/service\n", mount_), 3u);
    write("slice/service/cpu.max", "50000 100000");
    EXPECT_EQ(processors_of_quota("0::/slice/service\n", mount_), 1u);
    write("cpu.max", "200000 100000");  // a container's own group is its root, whatever its path on the host
    EXPECT_EQ(processors_of_quota("0::/docker/4711\n", mount_), 2u);
}

TEST_F(ControlGroups, SupportsVersionOne) {
    write("cpu/jobs/cpu.cfs_quota_us", "-1");
    write("cpu/jobs/cpu.cfs_period_us", "100000");
    EXPECT_EQ(processors_of_quota("5:memory:/jobs\n2:cpu,cpuacct:/jobs\n", mount_), std::nullopt);
    write("cpu/jobs/cpu.cfs_quota_us", "600000");
    EXPECT_EQ(processors_of_quota("5:memory:/jobs\n2:cpu,cpuacct:/jobs\n", mount_), 6u);
    EXPECT_EQ(processors_of_quota("5:memory:/jobs\n2:cpuset:/jobs\n", mount_), std::nullopt);
}

TEST_F(ControlGroups, InvalidValuesSetNoLimit) {
    for (const char* text : {"", "max", "0 0", "-5 100000", "x y", "100000 -1"}) {
        write("cpu.max", text);
        EXPECT_EQ(processors_of_quota("0::/\n", mount_), std::nullopt) << text;
    }
    EXPECT_EQ(processors_of_quota("no colons\n:\n::\n", mount_), std::nullopt);
    EXPECT_GE(processors_allowed(), 1u);
}

}  // namespace
}  // namespace gpupool
