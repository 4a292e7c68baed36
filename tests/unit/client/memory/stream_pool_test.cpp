// Stream-ordered memory over a heap whose server is the test, with fences that the test completes.
#include "client/core/memory/stream_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "client/core/session/contexts.h"

namespace gpupool::test {
namespace {

using client::AddressWindow;
using client::DeviceHeap;
using client::StreamKey;
using client::StreamPool;

constexpr std::uint64_t kBase = 0x600000000000, kMiB = 1u << 20, kBlock = 64u << 10;
const StreamKey kA{0xa, 0}, kB{0xb, 0};

class StreamPoolTest : public testing::Test {
  protected:
    StreamPoolTest()
        : heap(window, {[this](std::uint64_t address, std::uint64_t bytes) {
                            if (committed_bytes + bytes > server_bytes) {
                                return CUDA_ERROR_OUT_OF_MEMORY;
                            }
                            committed[address] = bytes;
                            committed_bytes += bytes;
                            return CUDA_SUCCESS;
                        },
                        [this](std::uint64_t address, std::uint64_t bytes) {
                            committed.erase(address);
                            committed_bytes -= bytes;
                        }}),
          pool(heap) {
        window.keep({}, kBase, 4096 * kMiB);
    }
    std::uint64_t allocate(std::uint64_t bytes, const StreamKey& stream) {
        std::uint64_t address = 0;
        EXPECT_EQ(pool.allocate(bytes, stream, address), CUDA_SUCCESS);
        return address;
    }
    bool free(std::uint64_t address, const StreamKey& stream) {
        return pool.free(address, {stream, &context}, ++command, [this]() -> StreamPool::Passed {
            fences.push_back(std::make_shared<bool>(false));
            return [fence = fences.back()] { return *fence; };
        });
    }

    std::uint64_t server_bytes = 1024 * kMiB, committed_bytes = 0, command = 0;
    std::map<std::uint64_t, std::uint64_t> committed;
    std::vector<std::shared_ptr<bool>> fences;
    client::ContextState context;
    AddressWindow window;
    DeviceHeap heap;
    StreamPool pool;
};

TEST_F(StreamPoolTest, FreedBlockIsReusedAtOnceOnlyInItsStream) {
    const std::uint64_t block = allocate(kBlock, kA);
    EXPECT_TRUE(free(block, kA));
    EXPECT_NE(allocate(kBlock, kB), block) << "work of the other stream may still use it";
    EXPECT_EQ(allocate(kBlock, kA), block);
}

TEST_F(StreamPoolTest, FreeOfForeignAddressIsRefused) {
    const std::uint64_t block = allocate(kBlock, kA);
    EXPECT_FALSE(free(block + 512, kA));
    EXPECT_TRUE(free(block, kA));
    EXPECT_FALSE(free(block, kA)) << "freed twice";
    EXPECT_FALSE(pool.free_complete(block));
}

TEST_F(StreamPoolTest, OtherStreamReusesABlockAfterTheFence) {
    const std::uint64_t block = allocate(9 * kMiB, kA);
    free(block, kA);
    ASSERT_TRUE(fences.empty()) << "not every free has a fence";
    for (std::size_t i = 1; i < StreamPool::kBlocksPerFence; ++i) {
        free(allocate(512, kB), kA);  // from the heap each time
    }
    ASSERT_EQ(fences.size(), 1u);
    allocate(512, kB);
    EXPECT_TRUE(committed.contains(block));
    *fences[0] = true;
    allocate(512, kB);
    EXPECT_FALSE(committed.contains(block)) << "complete and not in use: back to the device";
}

// Recording a fence may wait for the stream, and the thread that ends this wait may need the pool.
TEST_F(StreamPoolTest, FenceIsRecordedWithoutTheLock) {
    std::uint64_t other = 0;
    const std::uint64_t block = allocate(StreamPool::kBytesPerFence, kA);
    const bool freed = pool.free(block, {kA, &context}, ++command, [&]() -> StreamPool::Passed {
        std::thread([&] { other = allocate(kBlock, kB); }).join();
        return [] { return true; };
    });
    EXPECT_TRUE(freed);
    EXPECT_NE(other, 0u);
    EXPECT_FALSE(committed.contains(block)) << "the fence is complete";
}

TEST_F(StreamPoolTest, ContextsEndReturnsItsBlocks) {
    const std::uint64_t block = allocate(StreamPool::kBytesPerFence, kA), small = allocate(9 * kMiB, kB);
    free(block, kA);
    free(small, kB);
    ASSERT_EQ(fences.size(), 1u);
    client::ContextState another;
    pool.end(another);
    EXPECT_TRUE(committed.contains(block));
    pool.end(context);
    EXPECT_TRUE(committed.empty());
    EXPECT_FALSE(pool.any_freed());
    EXPECT_EQ(fences[0].use_count(), 1) << "the pool has released the fence";
}

TEST_F(StreamPoolTest, SynchronizationCompletesEarlierFrees) {
    const std::uint64_t early = allocate(9 * kMiB, kA), late = allocate(9 * kMiB, kA);
    free(early, kA);
    const std::uint64_t synchronization = ++command;
    free(late, kA);
    pool.complete(kB, synchronization);
    EXPECT_TRUE(committed.contains(early)) << "another stream was synchronized";
    pool.complete(kA, synchronization);
    EXPECT_FALSE(committed.contains(early));
    EXPECT_TRUE(committed.contains(late)) << "freed behind the synchronization";
    pool.complete(context, ++command);
    EXPECT_FALSE(committed.contains(late));
    EXPECT_FALSE(pool.any_freed());
}

TEST_F(StreamPoolTest, ReleaseThresholdKeepsCompleteBlocksForAnyStream) {
    pool.set_release_threshold(20 * kMiB);
    const std::uint64_t first = allocate(10 * kMiB, kA), second = allocate(10 * kMiB, kA),
                        third = allocate(10 * kMiB, kA);
    EXPECT_EQ(pool.usage().used_bytes, 30 * kMiB);
    for (const std::uint64_t block : {first, second, third}) {
        free(block, kA);
    }
    pool.complete(kA, ++command);
    EXPECT_EQ(pool.kept_bytes(), 20 * kMiB);
    EXPECT_EQ(pool.usage().reserved_bytes, 20 * kMiB);
    EXPECT_EQ(pool.usage().reserved_high_bytes, 30 * kMiB);
    const std::size_t slabs = committed.size();
    allocate(10 * kMiB, kB);
    EXPECT_EQ(committed.size(), slabs) << "a kept block is reused";
    pool.release(0);
    EXPECT_EQ(pool.kept_bytes(), 0u);
    EXPECT_EQ(committed_bytes, 10 * kMiB);
}

TEST_F(StreamPoolTest, OutOfMemoryEndsWhenFreesAreComplete) {
    server_bytes = 64 * kMiB;
    const std::uint64_t block = allocate(60 * kMiB, kA);
    free(block, kA);
    std::uint64_t other = 0;
    EXPECT_EQ(pool.allocate(60 * kMiB, kB, other), CUDA_ERROR_OUT_OF_MEMORY);
    pool.complete(kA, ++command);
    EXPECT_EQ(pool.allocate(60 * kMiB, kB, other), CUDA_SUCCESS);
}

// A block is never allocated twice at a time, and another stream gets it only after its own stream has reached the
// free.
TEST_F(StreamPoolTest, RandomOperationsAgreeWithANaiveModel) {
    struct Held {
        std::uint64_t bytes;
        StreamKey stream;
    };
    std::mt19937 random(11);
    std::map<std::uint64_t, Held> live, freed;  // by address; freed: not yet complete
    const std::vector<StreamKey> streams{kA, kB, {0xc, 0}};
    const auto overlaps = [](const std::map<std::uint64_t, Held>& blocks, std::uint64_t address, std::uint64_t bytes,
                             const StreamKey* but) {
        return std::any_of(blocks.begin(), blocks.end(), [&](const auto& block) {
            return block.first < address + bytes && address < block.first + block.second.bytes &&
                   (but == nullptr || block.second.stream != *but);
        });
    };
    pool.set_release_threshold(64 * kMiB);
    for (int i = 0; i < 20'000; ++i) {
        const StreamKey stream = streams[random() % streams.size()];
        switch (random() % 8) {
            case 0:
            case 1:
            case 2:
            case 3: {
                const std::uint64_t bytes =
                    random() % 20 == 0 ? (8 + random() % 8) * kMiB : 1 + random() % (256u << 10);
                std::uint64_t address = 0;
                if (pool.allocate(bytes, stream, address) != CUDA_SUCCESS) {
                    break;
                }
                ASSERT_FALSE(overlaps(live, address, bytes, nullptr)) << "allocated twice";
                ASSERT_FALSE(overlaps(freed, address, bytes, &stream)) << "another stream may still use it";
                std::erase_if(freed, [&](const auto& block) {
                    return block.first < address + bytes && address < block.first + block.second.bytes;
                });
                live[address] = {bytes, stream};
                break;
            }
            case 4:
            case 5:
            case 6: {
                if (live.empty()) {
                    break;
                }
                const auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
                freed[it->first] = {it->second.bytes, stream};
                // These have no fences; complete() alone reports their completion.
                ASSERT_TRUE(pool.free(it->first, {stream, &context}, ++command, {}));
                live.erase(it);
                break;
            }
            default:
                if (random() % 16 == 0) {
                    pool.complete(stream, ++command);
                    std::erase_if(freed, [&](const auto& block) { return block.second.stream == stream; });
                }
        }
    }
    std::uint64_t used = 0;
    for (const auto& [address, block] : live) {
        used += block.bytes;
    }
    EXPECT_GE(pool.usage().used_bytes, used);
    EXPECT_LE(committed_bytes, server_bytes);
}

}  // namespace
}  // namespace gpupool::test
