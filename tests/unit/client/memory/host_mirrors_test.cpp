#include "client/core/memory/host_mirrors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/support/event_counter.h"
#include "tests/support/manual_clock.h"
#include "tests/support/waiting.h"

namespace gpupool::client {
namespace {

using Records = std::vector<std::vector<std::byte>>;

class HostMirrorsTest : public testing::Test {
  protected:
    static constexpr std::size_t kWords = 600'000;  // more than one portion of a comparison
    static constexpr std::uint64_t kDeviceBase = 0x300000000000;
    static std::uint64_t address(const void* place) { return reinterpret_cast<std::uint64_t>(place); }

    HostMirrorsTest() {
        mirrors_.add(address(words_.data()), kWords * sizeof(std::uint32_t), kDeviceBase, HostMirrors::Owner::gpupool);
    }

    Records published() {
        Records records;
        mirrors_.publish([&](std::span<const std::byte> record) {
            records.emplace_back(record.begin(), record.end());
            return CUDA_SUCCESS;
        });
        return records;
    }
    // The server's record that the word at `index` has changed to `value`.
    std::vector<std::byte> change(std::size_t index, std::uint32_t value) const {
        std::vector<std::uint32_t> other(kWords);
        std::vector<std::byte> baseline(kWords * sizeof(std::uint32_t)), found;
        other[index] = value;
        const codec::SharedBlock block{kDeviceBase, reinterpret_cast<std::byte*>(other.data()), baseline.data(),
                                       baseline.size()};
        codec::find_changes(block, [&](auto record) { found.assign(record.begin(), record.end()); });
        return found;
    }

    std::vector<std::uint32_t> words_ = std::vector<std::uint32_t>(kWords);
    HostMirrors mirrors_;
};

TEST_F(HostMirrorsTest, ProgramsChangesArePublishedOnce) {
    EXPECT_TRUE(published().empty());
    words_[0] = 1;
    words_[kWords - 1] = 2;
    EXPECT_EQ(published().size(), 2u);
    EXPECT_TRUE(published().empty());
}

TEST_F(HostMirrorsTest, AddressesInWhatChangedAreFoundOnce) {
    const AddressBounds searched = {0x7f0000000000, 0x7f0000010000};
    std::uint64_t added = 0;
    const auto publish = [&] {
        return mirrors_.publish([](auto) { return CUDA_SUCCESS; },
                                [&] {
                                    return HostMirrors::Search{searched, added};
                                });
    };
    const auto store = [&](std::size_t word, std::uint64_t value) { std::memcpy(&words_[word], &value, sizeof value); };
    EXPECT_EQ(publish(), CUDA_SUCCESS);
    EXPECT_TRUE(mirrors_.take_found().empty());
    store(2, searched.begin + 8);
    store(4, searched.end);
    EXPECT_EQ(publish(), CUDA_SUCCESS);
    EXPECT_EQ(mirrors_.take_found(), std::vector<std::uint64_t>{searched.begin + 8});
    EXPECT_TRUE(mirrors_.take_found().empty());
    // Only one byte of the word changes: the record contains no whole address.
    store(2, searched.begin + 16);
    EXPECT_EQ(publish(), CUDA_SUCCESS);
    EXPECT_EQ(mirrors_.take_found(), std::vector<std::uint64_t>{searched.begin + 16});
    added = 1;  // a new block may have an address that the memory already holds
    EXPECT_EQ(publish(), CUDA_SUCCESS);
    EXPECT_EQ(mirrors_.take_found(), std::vector<std::uint64_t>{searched.begin + 16});
    EXPECT_EQ(publish(), CUDA_SUCCESS);
    EXPECT_TRUE(mirrors_.take_found().empty());
    store(kWords - 2, searched.begin);
    EXPECT_FALSE(published().empty()) << "without bounds";
    EXPECT_TRUE(mirrors_.take_found().empty());
}

TEST_F(HostMirrorsTest, SharedMemoryIsNeverCompared) {
    std::vector<std::uint32_t> shared(1000);
    const std::uint64_t base = address(shared.data());
    mirrors_.add_shared(base, shared.size() * sizeof(std::uint32_t));
    EXPECT_TRUE(mirrors_.is_shared(base + 8));
    EXPECT_FALSE(mirrors_.is_shared(address(words_.data())));
    EXPECT_EQ(mirrors_.device_address(base + 8), base + 8);
    shared[3] = 5;
    EXPECT_TRUE(published().empty());
    words_[3] = 5;
    EXPECT_EQ(published().size(), 1u) << "the other mirror is still compared";
    mirrors_.remove(address(words_.data()));
    EXPECT_FALSE(mirrors_.any()) << "nothing is left to compare";
    EXPECT_EQ(mirrors_.device_address(base), base);
    mirrors_.remove(base);
    EXPECT_EQ(mirrors_.device_address(base), 0u);
}

TEST_F(HostMirrorsTest, GpusChangesAreAppliedAndNotPublishedBack) {
    EXPECT_TRUE(mirrors_.apply(change(300'000, 7)));
    EXPECT_EQ(words_[300'000], 7u);
    EXPECT_TRUE(published().empty());
}

TEST_F(HostMirrorsTest, ChangesOutsideOfMirrorsAreRefused) {
    std::vector<std::byte> record = change(5, 7);
    codec::ChangeHeader header{};
    std::memcpy(&header, record.data(), sizeof header);
    std::vector<std::uint64_t> secret(4, 0x5555555555555555);
    header.address = address(secret.data());
    std::memcpy(record.data(), &header, sizeof header);
    EXPECT_FALSE(mirrors_.apply(record));
    EXPECT_EQ(secret, std::vector<std::uint64_t>(4, 0x5555555555555555));
    EXPECT_FALSE(mirrors_.apply({}));
    mirrors_.remove(address(words_.data()));
    EXPECT_FALSE(mirrors_.apply(change(5, 7)));
    EXPECT_EQ(words_[5], 0u);
    EXPECT_FALSE(mirrors_.any());
}

TEST_F(HostMirrorsTest, FailedSendEndsPublishing) {
    words_[0] = words_[kWords - 1] = 1;
    int sent = 0;
    EXPECT_EQ(mirrors_.publish([&](auto) {
        ++sent;
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }),
              CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(sent, 1);
}

// A full connection blocks the sender until the receiver has made progress, so the receiver must not wait for the
// sender.
TEST_F(HostMirrorsTest, ChangesAreAppliedWhileASenderIsBlocked) {
    words_[0] = 1;
    bool taken = false;
    mirrors_.publish([&](auto) {
        std::thread receiver([&] { taken = mirrors_.apply(change(9, 9)); });
        receiver.join();
        return CUDA_SUCCESS;
    });
    EXPECT_TRUE(taken);
}

// The second publisher must wait until the first has sent the changes that it found, or the second one's command would
// overtake them.
TEST_F(HostMirrorsTest, SecondPublisherWaitsForTheFirst) {
    words_[0] = 1;
    std::atomic<bool> first_has_sent{false};
    std::atomic<bool> in_order{true};
    std::optional<test::ObservedThread> second;
    mirrors_.publish([&](auto) {
        second.emplace([&] {
            mirrors_.publish([](auto) { return CUDA_SUCCESS; });
            in_order = first_has_sent.load();
        });
        EXPECT_TRUE(second->blocks());
        first_has_sent = true;
        return CUDA_SUCCESS;
    });
    second->join();
    EXPECT_TRUE(in_order);
}

TEST_F(HostMirrorsTest, ChangesArePublishedPeriodicallyWhileThereIsAMirror) {
    // Never destroyed, because the polling thread lives as long as the process.
    auto& clock = *new test::ManualClock;
    auto& mirrors = *new HostMirrors(clock);
    auto& published = *new test::EventCounter;
    const std::uint64_t base = address(words_.data());
    mirrors.add(base, sizeof words_[0], kDeviceBase, HostMirrors::Owner::gpupool);
    mirrors.start_polling([&] {
        published.add();
        return true;
    });
    for (std::size_t round = 0; round < 3; ++round) {
        ASSERT_TRUE(clock.wait_for_wait_until(std::chrono::milliseconds(1)));
        EXPECT_EQ(published.count(), round);
        clock.advance(std::chrono::milliseconds(1));
        ASSERT_TRUE(published.wait_for(round + 1));
    }
    ASSERT_TRUE(clock.wait_for_wait_until(std::chrono::milliseconds(1)));
    mirrors.remove(base);
    clock.advance(std::chrono::milliseconds(1));
    ASSERT_TRUE(clock.wait_for_wait_until(std::chrono::milliseconds(100))) << "less often without a mirror";
    EXPECT_EQ(published.count(), 3u);
}

TEST_F(HostMirrorsTest, AdjacentWordsOfProgramAndGpuAreKept) {
    constexpr unsigned kChanges = 50 * 5;
    std::atomic<unsigned> applied{0};
    std::thread receiver([&] {
        for (std::uint32_t round = 1; round <= 50; ++round) {
            for (std::size_t i = 1; i < 2000; i += 400) {
                EXPECT_TRUE(mirrors_.apply(change(i, round)));
                ++applied;
                applied.notify_one();
            }
        }
    });
    std::uint32_t round = 0;
    for (unsigned before = 0; before < kChanges; before = applied) {
        applied.wait(before);  // otherwise this thread could keep the receiver from the mirrors' lock
        ++round;
        for (std::size_t i = 0; i < 2000; i += 400) {
            __atomic_store_n(&words_[i], round, __ATOMIC_RELAXED);
        }
        published();
    }
    receiver.join();
    for (std::size_t i = 0; i < 2000; i += 400) {
        EXPECT_EQ(words_[i], round);
        EXPECT_EQ(words_[i + 1], 50u);
    }
}

// Memory that the application registered, and its uses of it while the GPU has a mirror.
class RegisteredMirrorTest : public HostMirrorsTest {
  protected:
    static constexpr std::size_t kPage = 4096, kBytes = 3 * kPage;

    RegisteredMirrorTest() {
        mirrors_.remove(address(words_.data()));
        memory_ =
            static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        // The block shares its first and last page with other data, as on a heap.
        mirrors_.add(address(memory_ + 36), kBytes - 72, kDeviceBase + 36, HostMirrors::Owner::application);
    }
    ~RegisteredMirrorTest() override { munmap(memory_, kBytes); }
    std::byte& at(std::size_t offset) { return memory_[36 + offset]; }

    std::byte* memory_ = nullptr;
};

TEST_F(RegisteredMirrorTest, IsMirroredLikeOtherMemory) {
    at(0) = std::byte{1};
    at(kBytes - 73) = std::byte{2};
    EXPECT_EQ(published().size(), 2u);
    EXPECT_TRUE(published().empty());
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
    EXPECT_EQ(memory_[kPage], std::byte{7});
    EXPECT_TRUE(published().empty());
}

TEST_F(RegisteredMirrorTest, UnmappedMemoryIsIgnored) {
    at(0) = std::byte{1};
    munmap(memory_ + kPage, kPage);
    EXPECT_TRUE(published().empty());
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
    // New memory at the same address must be left alone.
    ASSERT_EQ(mmap(memory_ + kPage, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              memory_ + kPage);
    memory_[kPage] = std::byte{5};
    EXPECT_TRUE(published().empty());
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
    EXPECT_EQ(memory_[kPage], std::byte{5});
}

TEST_F(RegisteredMirrorTest, GpusChangesDetectUnmappedMemory) {
    munmap(memory_, kBytes);
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
    EXPECT_TRUE(published().empty());
}

TEST_F(RegisteredMirrorTest, MemoryWithoutAccessIsIgnored) {
    mprotect(memory_, kBytes, PROT_NONE);
    EXPECT_TRUE(published().empty());
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
}

TEST_F(RegisteredMirrorTest, ReadOnlyMemoryIsNotWritten) {
    mprotect(memory_, kBytes, PROT_READ);
    EXPECT_TRUE(mirrors_.apply(change(kPage / 4, 7)));
    EXPECT_EQ(memory_[kPage], std::byte{0});
}

}  // namespace
}  // namespace gpupool::client
