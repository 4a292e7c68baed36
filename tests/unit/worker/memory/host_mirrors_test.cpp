// The GPU's writes to mapped host memory, and how they are sent to the client.
#include "server/worker/memory/host_mirrors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

namespace gpupool::test {
namespace {

using worker::HostMirrors;

constexpr std::size_t kBytes = 8u << 20;

class WorkersMirrors : public testing::Test {
  protected:
    WorkersMirrors() {
        // An address that is free.
        void* const place = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(place, kBytes);
        address_ = reinterpret_cast<std::uint64_t>(place);
        HostMirrors::Pages pages;
        EXPECT_EQ(mirrors_.reserve(address_, kBytes, nullptr, pages), CUDA_SUCCESS);
        mirrors_.registered(address_);
        client_block_ = {address_, client_.data(), baseline_.data(), kBytes};
    }
    ~WorkersMirrors() override { mirrors_.release(address_); }

    // Writes as the GPU would.
    void write(std::size_t word, std::uint64_t value) {
        auto* const words = reinterpret_cast<std::uint64_t*>(address_);
        std::atomic_ref(words[word]).store(value, std::memory_order_relaxed);
    }
    // The value that the client has received so far.
    [[nodiscard]] std::uint64_t clients(std::size_t word) const {
        std::uint64_t value = 0;
        std::memcpy(&value, client_.data() + word * sizeof value, sizeof value);
        return value;
    }
    HostMirrors::Send send() {
        return [this](std::span<const std::byte> record) {
            ++records_;
            EXPECT_TRUE(codec::apply_changes(record, [this](std::uint64_t) { return &client_block_; }));
        };
    }

    std::uint64_t address_ = 0;
    HostMirrors mirrors_;
    std::vector<std::byte> client_ = std::vector<std::byte>(kBytes), baseline_ = client_;
    codec::SharedBlock client_block_;
    std::size_t records_ = 0;
};

TEST_F(WorkersMirrors, ChangesAreSentAfterEarlierCompletions) {
    write(7, 1);
    bool notified = false;
    EXPECT_TRUE(mirrors_.poll(
        [&] {
            notified = true;
            EXPECT_EQ(clients(7), 0u);
        },
        send()));
    EXPECT_TRUE(notified);
    EXPECT_EQ(clients(7), 1u);
}

// While earlier completions are being reported, an answer sends what the GPU has written until then.
TEST_F(WorkersMirrors, LaterValueIsNotOverwrittenByAnEarlierOne) {
    write(7, 1);
    write(1000, 1);
    mirrors_.poll(
        [&] {
            write(7, 2);
            mirrors_.collect(send());
            EXPECT_EQ(clients(7), 2u);
            EXPECT_EQ(clients(1000), 1u) << "earlier changes are sent with it";
        },
        send());
    EXPECT_EQ(clients(7), 2u);
    const std::size_t sent = records_;
    mirrors_.collect(send());
    EXPECT_EQ(records_, sent) << "both sides agree";
}

TEST_F(WorkersMirrors, LargeChangesAreSentInPortions) {
    for (std::size_t word = 0; word < kBytes / 8; ++word) {
        write(word, word + 1);
    }
    std::size_t portions = 0;
    mirrors_.poll([&] { ++portions; }, send());
    EXPECT_GE(portions, 3u);  // the first records are short, because most bytes of the words are still zero
    EXPECT_EQ(std::memcmp(client_.data(), reinterpret_cast<const void*>(address_), kBytes), 0);
}

TEST_F(WorkersMirrors, KeepToTheLimitOfPinnedMemory) {
    void* const place = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(place, kBytes);
    const auto address = reinterpret_cast<std::uint64_t>(place);
    HostMirrors::Pages pages;
    mirrors_.limit_pinned(kBytes + kBytes / 2);
    EXPECT_EQ(mirrors_.reserve(address, kBytes, nullptr, pages), CUDA_ERROR_OUT_OF_MEMORY);
    mirrors_.limit_pinned(kBytes / 2);
    EXPECT_EQ(mirrors_.reserve(address, 4096, nullptr, pages), CUDA_ERROR_OUT_OF_MEMORY) << "lower than what there is";
    mirrors_.limit_pinned(2 * kBytes);
    EXPECT_EQ(mirrors_.reserve(address, kBytes, nullptr, pages), CUDA_SUCCESS);
    EXPECT_FALSE(mirrors_.is_shared(address)) << "a copy of the client's memory";
    mirrors_.release(address);
}

}  // namespace
}  // namespace gpupool::test
