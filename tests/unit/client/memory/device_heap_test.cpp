// Compares the device heap with a naive model: random allocations and frees, with a server that sometimes has no
// memory.
#include "client/core/memory/device_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/waiting.h"

namespace gpupool::test {
namespace {

using client::AddressWindow;
using client::DeviceHeap;

constexpr std::uint64_t kBase = 0x600000000000, kMiB = 1u << 20;

class DeviceHeapTest : public testing::Test {
  protected:
    DeviceHeapTest()
        : heap(window, {[this](std::uint64_t address, std::uint64_t bytes) { return commit(address, bytes); },
                        [this](std::uint64_t address, std::uint64_t bytes) {
                            EXPECT_EQ(committed.at(address), bytes);
                            committed.erase(address);
                            ++releases;
                        },
                        [this](std::uint64_t address, std::uint64_t bytes) {
                            preparing.emplace_back(address, bytes);
                            return CUDA_SUCCESS;
                        }}) {
        window.keep({}, kBase, 4096 * kMiB);
    }
    CUresult commit(std::uint64_t address, std::uint64_t bytes) {
        if (during_commit) {
            std::exchange(during_commit, nullptr)();
        }
        ++commits;
        if (committed_bytes() + bytes > server_bytes) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        EXPECT_EQ(address % AddressWindow::kGranularity, 0u);
        EXPECT_EQ(bytes % AddressWindow::kGranularity, 0u);
        const auto next = committed.lower_bound(address);
        EXPECT_TRUE(next == committed.end() || address + bytes <= next->first) << "slabs overlap";
        EXPECT_TRUE(next == committed.begin() || std::prev(next)->first + std::prev(next)->second <= address);
        committed[address] = bytes;
        return CUDA_SUCCESS;
    }
    // The server commits the slabs that were requested in advance.
    void prepare() {
        for (const auto& [address, bytes] : std::exchange(preparing, {})) {
            EXPECT_TRUE(heap.prepared(address, commit(address, bytes)));
        }
    }
    std::uint64_t allocate(std::uint64_t bytes) {
        std::uint64_t address = 0;
        EXPECT_EQ(heap.allocate(bytes, address), CUDA_SUCCESS);
        return address;
    }
    [[nodiscard]] std::uint64_t committed_bytes() const {
        std::uint64_t total = 0;
        for (const auto& [address, bytes] : committed) {
            total += bytes;
        }
        return total;
    }

    // A block lies within one slab and overlaps no other block.
    void check_block(std::uint64_t address, std::uint64_t bytes) {
        ASSERT_EQ(address % DeviceHeap::kAlignment, 0u);
        auto slab = committed.upper_bound(address);
        ASSERT_NE(slab, committed.begin()) << "not in a slab";
        --slab;
        ASSERT_LE(address + bytes, slab->first + slab->second) << "reaches beyond its slab";
        const auto next = blocks.lower_bound(address);
        ASSERT_TRUE(next == blocks.end() || address + bytes <= next->first) << "overlaps the block behind it";
        ASSERT_TRUE(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= address)
            << "overlaps the block before it";
    }

    std::uint64_t server_bytes = 1024 * kMiB;
    std::function<void()> during_commit;  // called once
    std::map<std::uint64_t, std::uint64_t> committed, blocks;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> preparing;  // address, bytes
    int commits = 0, releases = 0;
    AddressWindow window;
    DeviceHeap heap;
};

TEST_F(DeviceHeapTest, RandomOperationsAgreeWithANaiveModel) {
    std::mt19937 random(7);
    for (int step = 0; step < 20'000; ++step) {
        if (random() % 2000 == 0) {
            server_bytes = (random() % 2 == 0 ? 64 : 1024) * kMiB;
        }
        if (random() % 4 == 0) {
            prepare();
        }
        if (blocks.empty() || random() % 100 < 52) {
            const std::uint64_t exponent = random() % 24;
            // Some blocks are large and mostly of the same size, so that spare slabs occur.
            const std::uint64_t bytes =
                random() % 16 == 0 ? (8 + random() % 8 / 7 * 2) * kMiB : 1 + random() % (std::uint64_t{1} << exponent);
            std::uint64_t address = 0;
            const CUresult result = heap.allocate(bytes, address);
            if (result == CUDA_SUCCESS) {
                ASSERT_NO_FATAL_FAILURE(check_block(address, bytes)) << "step " << step;
                blocks[address] = bytes;
            } else {
                ASSERT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
                ASSERT_GT(committed_bytes() + DeviceHeap::kLargeBytes + 2 * kMiB, 32 * kMiB)
                    << "refused with nothing in use";
            }
        } else {
            auto block = blocks.begin();
            std::advance(block, random() % std::min<std::size_t>(blocks.size(), 50));
            heap.free(block->first);
            blocks.erase(block);
        }
    }
    for (const auto& [address, bytes] : blocks) {
        heap.free(address);
    }
    prepare();
    EXPECT_LE(committed.size(), 2u) << "at most one empty slab and a spare one are kept";
    EXPECT_EQ(heap.free_bytes(), committed_bytes());
    while (heap.trim()) {
    }
    EXPECT_TRUE(committed.empty());
    // The whole window is free again, in one piece.
    EXPECT_EQ(window.allocate(4096 * kMiB), kBase);
}

TEST_F(DeviceHeapTest, SmallBlocksComeFromCommittedSlabs) {
    std::uint64_t address = 0;
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(heap.allocate(1024, address), CUDA_SUCCESS);
    }
    EXPECT_EQ(commits, 1);
    for (int i = 0; i < 100; ++i) {  // a block of the same size reuses the place that was just freed
        heap.free(address);
        const std::uint64_t before = address;
        ASSERT_EQ(heap.allocate(1024, address), CUDA_SUCCESS);
        EXPECT_EQ(address, before);
    }
    EXPECT_EQ(commits, 1);
    EXPECT_EQ(releases, 0);
}

TEST_F(DeviceHeapTest, SlabsGrowWithTheMemoryInUse) {
    std::uint64_t address = 0;
    std::uint64_t used = 0;
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(heap.allocate(kMiB / 2, address), CUDA_SUCCESS);
        used += kMiB / 2;
        EXPECT_LE(committed_bytes(), std::max(2 * kMiB, std::min(2 * used, used + DeviceHeap::kMaxSlabBytes)));
    }
    EXPECT_LE(commits, 5 + 500 / 32);
}

TEST_F(DeviceHeapTest, LargerOfTwoEmptySlabsIsKept) {
    std::uint64_t small = 0, large = 0;
    ASSERT_EQ(heap.allocate(kMiB, small), CUDA_SUCCESS);
    ASSERT_EQ(heap.allocate(6 * kMiB, large), CUDA_SUCCESS);
    heap.free(small);
    heap.free(large);
    EXPECT_EQ(committed_bytes(), 6 * kMiB);
    for (int i = 0; i < 10; ++i) {  // alternately, without asking the server
        ASSERT_EQ(heap.allocate(5 * kMiB, large), CUDA_SUCCESS);
        heap.free(large);
    }
    EXPECT_EQ(commits, 2);
    EXPECT_EQ(releases, 1);
}

TEST_F(DeviceHeapTest, EmptySlabIsReleasedWhenMemoryIsShort) {
    server_bytes = 64 * kMiB;
    std::uint64_t address = 0;
    ASSERT_EQ(heap.allocate(kMiB, address), CUDA_SUCCESS);
    heap.free(address);
    EXPECT_EQ(committed_bytes(), 2 * kMiB);
    EXPECT_EQ(heap.allocate(64 * kMiB, address), CUDA_SUCCESS) << "all of it";
    EXPECT_EQ(committed_bytes(), 64 * kMiB);
    heap.free(address);
}

TEST_F(DeviceHeapTest, LargeBlockUsesASharedSlabWhenMemoryIsShort) {
    server_bytes = 64 * kMiB;
    std::vector<std::uint64_t> small;
    std::uint64_t address = 0;
    while (heap.allocate(kMiB, address) == CUDA_SUCCESS) {
        small.push_back(address);
    }
    ASSERT_EQ(small.size(), 64u);
    std::sort(small.begin(), small.end());
    for (std::size_t i = 48; i < small.size(); ++i) {
        heap.free(small[i]);
    }
    heap.trim();
    server_bytes = committed_bytes();
    ASSERT_GE(heap.free_bytes(), 8 * kMiB);
    ASSERT_EQ(heap.allocate(8 * kMiB, address), CUDA_SUCCESS) << "that memory was reported as free";
    check_block(address, 8 * kMiB);
    const std::uint64_t before = heap.free_bytes();
    heap.free(address);
    EXPECT_EQ(heap.free_bytes(), before + 8 * kMiB);
}

// Blocks of mixed sizes come and go, as a framework's do. The committed memory stays near the peak demand.
TEST_F(DeviceHeapTest, FragmentationIsBounded) {
    server_bytes = 4096 * kMiB;
    std::mt19937 random(11);
    std::uint64_t used = 0, most = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
    for (int step = 0; step < 100'000; ++step) {
        // In waves of high and low demand.
        const bool grow = used < (step / 5000 % 2 == 0 ? 600 : 100) * kMiB;
        if (held.empty() || (grow ? random() % 100 < 70 : random() % 100 < 30)) {
            const std::uint64_t bytes = 512 + random() % (std::uint64_t{1} << (10 + random() % 14));
            std::uint64_t address = 0;
            ASSERT_EQ(heap.allocate(bytes, address), CUDA_SUCCESS);
            held.emplace_back(address, bytes);
            used += bytes;
            most = std::max(most, used);
        } else {
            std::swap(held[random() % held.size()], held.back());
            heap.free(held.back().first);
            used -= held.back().second;
            held.pop_back();
        }
        ASSERT_LE(committed_bytes(), most + most / 4 + 2 * DeviceHeap::kMaxSlabBytes) << "step " << step;
    }
}

TEST_F(DeviceHeapTest, LargeBlocksAreReturnedAtOnce) {
    std::uint64_t address = 0;
    ASSERT_EQ(heap.allocate(100 * kMiB + 1, address), CUDA_SUCCESS);
    EXPECT_EQ(committed.at(address), 102 * kMiB);
    EXPECT_EQ(heap.free_bytes(), 0u);
    heap.free(address);
    EXPECT_TRUE(committed.empty());
}

// ---- a spare slab

TEST_F(DeviceHeapTest, RepeatedSizesGetAPreparedSlab) {
    server_bytes = 4096 * kMiB;
    const std::uint64_t layer[] = {16 * kMiB, 16 * kMiB, 44 * kMiB, 20 * kMiB};
    for (const std::uint64_t bytes : layer) {
        allocate(bytes);
    }
    EXPECT_TRUE(preparing.empty()) << "no pattern has repeated yet";
    int asked = 0;
    for (int i = 0; i < 10; ++i) {
        for (const std::uint64_t bytes : layer) {
            const int before = commits;
            EXPECT_EQ(committed.at(allocate(bytes)), bytes);
            asked += commits - before;
            prepare();
        }
    }
    EXPECT_EQ(asked, 2) << "commits are waited for only until the pattern is known";
    const int before = commits;
    for (int i = 0; i < 12; ++i) {
        allocate(16 * kMiB);
        prepare();
    }
    EXPECT_EQ(commits - before, 12 + 1) << "one commit for each block, and one for the spare slab";
    EXPECT_EQ(heap.free_bytes(), 16 * kMiB);
}

TEST_F(DeviceHeapTest, AllocationDoesNotWaitForASpareSlab) {
    std::set<std::uint64_t> blocks_of_it;
    for (int i = 0; i < 5; ++i) {
        blocks_of_it.insert(allocate(16 * kMiB));
    }
    EXPECT_EQ(commits, 5);
    ASSERT_EQ(preparing.size(), 1u) << "only one slab is prepared at a time";
    EXPECT_FALSE(blocks_of_it.contains(preparing[0].first));
    EXPECT_EQ(heap.free_bytes(), 0u) << "the slab is not committed yet";
    prepare();
    EXPECT_EQ(heap.free_bytes(), 16 * kMiB);
    EXPECT_FALSE(heap.prepared(kBase, CUDA_SUCCESS)) << "no slab was requested there";
    allocate(16 * kMiB);
    EXPECT_EQ(commits, 6);
}

TEST_F(DeviceHeapTest, SpareSlabIsReleasedWhenMemoryIsShort) {
    server_bytes = 80 * kMiB;
    for (int i = 0; i < 3; ++i) {
        allocate(16 * kMiB);
    }
    prepare();
    EXPECT_EQ(committed_bytes(), 64 * kMiB);
    allocate(32 * kMiB);
    EXPECT_EQ(committed_bytes(), 80 * kMiB) << "all of the server's memory";
    EXPECT_EQ(heap.free_bytes(), 0u);
}

TEST_F(DeviceHeapTest, FailureToPrepareASpareSlabIsIgnored) {
    server_bytes = 48 * kMiB;
    for (int i = 0; i < 3; ++i) {
        allocate(16 * kMiB);
    }
    prepare();
    EXPECT_EQ(heap.free_bytes(), 0u);
    std::uint64_t address = 0;
    EXPECT_EQ(heap.allocate(16 * kMiB, address), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(preparing.empty());
}

TEST_F(DeviceHeapTest, TrimReleasesASpareSlab) {
    for (int i = 0; i < 3; ++i) {
        allocate(16 * kMiB);
    }
    prepare();
    EXPECT_TRUE(heap.trim());
    EXPECT_EQ(committed_bytes(), 48 * kMiB);
    EXPECT_FALSE(heap.trim());
}

TEST_F(DeviceHeapTest, VeryLargeSlabsAreNotPrepared) {
    for (int i = 0; i < 5; ++i) {
        allocate(DeviceHeap::kMaxSpareBytes + 2 * kMiB);
    }
    EXPECT_TRUE(preparing.empty());
}

TEST_F(DeviceHeapTest, SlabIsSmallWhenTheServersMemoryIs) {
    server_bytes = 4 * kMiB;
    std::uint64_t address = 0;
    EXPECT_EQ(heap.allocate(kMiB, address), CUDA_SUCCESS);
    EXPECT_EQ(committed_bytes(), 2 * kMiB);
    EXPECT_EQ(heap.allocate(9 * kMiB, address), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(heap.allocate(~std::uint64_t{0}, address), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(heap.allocate(std::uint64_t{1} << 50, address), CUDA_ERROR_OUT_OF_MEMORY);
}

// The nested calls run inside a commit on this thread, so a wait for that commit would hang.
TEST_F(DeviceHeapTest, AllocationWithRoomDoesNotWaitForACommit) {
    std::uint64_t small = 0, other = 0, large = 0;
    ASSERT_EQ(heap.allocate(4096, small), CUDA_SUCCESS);
    during_commit = [&] {
        EXPECT_EQ(heap.allocate(4096, other), CUDA_SUCCESS);
        heap.free(small);
    };
    EXPECT_EQ(heap.allocate(64 * kMiB, large), CUDA_SUCCESS);
    EXPECT_EQ(commits, 2);
    EXPECT_NE(other, 0u);
    std::uint64_t another = 0;
    during_commit = [&] {
        const int before = commits;
        EXPECT_EQ(heap.allocate(16 * kMiB, another), CUDA_SUCCESS);
        EXPECT_EQ(commits, before + 1);
    };
    EXPECT_EQ(heap.allocate(7 * kMiB, large), CUDA_SUCCESS) << "a slab for small blocks";
    EXPECT_NE(another, 0u);
}

TEST_F(DeviceHeapTest, TwoThreadsShareOneCommit) {
    std::uint64_t first = 0, second = 0;
    std::optional<ObservedThread> other;
    during_commit = [&] {
        other.emplace([&] { EXPECT_EQ(heap.allocate(4096, second), CUDA_SUCCESS); });
        EXPECT_TRUE(other->blocks());
    };
    ASSERT_EQ(heap.allocate(4096, first), CUDA_SUCCESS);
    other->join();
    EXPECT_EQ(commits, 1);
    EXPECT_NE(first, second);
}

TEST_F(DeviceHeapTest, FreeOfANonBlockIsRefused) {
    std::uint64_t address = 0;
    ASSERT_EQ(heap.allocate(4096, address), CUDA_SUCCESS);
    const std::uint64_t free_bytes = heap.free_bytes();
    heap.free(address + 512);
    heap.free(0);
    EXPECT_EQ(heap.free_bytes(), free_bytes);
    heap.free(address);
    heap.free(address);
    EXPECT_EQ(heap.free_bytes(), free_bytes + 4096);
}

}  // namespace
}  // namespace gpupool::test
