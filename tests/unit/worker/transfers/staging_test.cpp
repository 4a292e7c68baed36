// Staging memory: the limit for one stream, and what happens when the context is destroyed.
#include "server/worker/transfers/staging.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpupool::test {
namespace {

using worker::Staging;

CUcontext current = nullptr;
int registrations = 0;

CUresult tell_current(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
}

CUresult register_memory(void*, std::size_t, unsigned) {
    ++registrations;
    return CUDA_SUCCESS;
}

CUcontext context(std::uintptr_t number) {
    return reinterpret_cast<CUcontext>(number);
}

// 16 chunks of 4 KiB, 16 of 64 KiB, and 16 small ones in reserve.
class StagingTest : public ::testing::Test {
  protected:
    StagingTest() {
        api.cuCtxGetCurrent = tell_current;
        api.cuMemHostRegister_v2 = register_memory;
        current = context(1);
        registrations = 0;
    }

    // Takes as many chunks as the stream gets.
    std::vector<std::byte*> take_all(Staging::StreamUsePtr& use, std::size_t bytes) {
        std::vector<std::byte*> chunks;
        for (auto chunk = staging.take(use, bytes); !chunk.empty(); chunk = staging.take(use, bytes)) {
            chunks.push_back(chunk.data());
        }
        return chunks;
    }

    static constexpr std::size_t kSmallBytes = 4096, kLargeBytes = 65536;
    driver::Api api{};
    int returned = 0;
    Staging staging{api,
                    {{kSmallBytes, 16 * kSmallBytes, 16 * kSmallBytes, 16 * kSmallBytes},
                     {kLargeBytes, 4 * kLargeBytes, 16 * kLargeBytes, 0}},
                    [this] { ++returned; }};
};

TEST_F(StagingTest, ChunkSizeFitsTheRequest) {
    Staging::StreamUsePtr use;
    EXPECT_EQ(staging.take(use, 1).size(), kSmallBytes);
    EXPECT_EQ(staging.take(use, kSmallBytes).size(), kSmallBytes);
    EXPECT_EQ(staging.take(use, kSmallBytes + 1).size(), kLargeBytes);
    EXPECT_EQ(staging.take(use, 100 * kLargeBytes).size(), kLargeBytes);
}

TEST_F(StagingTest, UseOfOneStreamIsLimited) {
    Staging::StreamUsePtr first, second;
    const auto of_first = take_all(first, kLargeBytes);
    EXPECT_EQ(of_first.size(), 8u);
    EXPECT_EQ(take_all(second, kLargeBytes).size(), 4u);
    std::vector<Staging::StreamUsePtr> more(12);
    std::size_t large = 0, small = 0;
    for (Staging::StreamUsePtr& use : more) {
        const auto chunk = staging.take(use, kLargeBytes);
        ASSERT_FALSE(chunk.empty()) << "a stream without chunks always gets one";
        ++(chunk.size() == kLargeBytes ? large : small);
    }
    EXPECT_EQ(large, 4u);
    EXPECT_EQ(small, 8u);
    EXPECT_TRUE(staging.take(more[0], kLargeBytes).empty());
    staging.put(of_first[0]);
    EXPECT_EQ(returned, 1);
    EXPECT_TRUE(staging.take(first, kLargeBytes).empty()) << "it holds more than is left";
    Staging::StreamUsePtr another;
    EXPECT_EQ(staging.take(another, kLargeBytes).data(), of_first[0]);
}

TEST_F(StagingTest, ReserveIsForStreamsWithoutChunks) {
    std::vector<Staging::StreamUsePtr> streams(33);
    take_all(streams[0], 1);
    std::size_t served = 1;
    for (std::size_t i = 1; i < streams.size(); ++i) {
        served += staging.take(streams[i], 1).empty() ? 0 : 1;
    }
    EXPECT_EQ(served, 1u + 24u) << "the first stream has 8 of the small ones";
    EXPECT_TRUE(staging.take(streams[1], 1).empty());
    EXPECT_EQ(staging.take(streams.back(), kLargeBytes).size(), kLargeBytes) << "the large chunks are untouched";
}

TEST_F(StagingTest, ChunksReturnedDuringAContextsEndStayUnused) {
    Staging::StreamUsePtr ending, other;
    std::byte* const mine = staging.take(ending, 1).data();
    std::byte* const others = staging.take(other, 1).data();
    ASSERT_TRUE(mine != nullptr && others != nullptr);
    staging.withhold();
    staging.put(mine);
    bool unused = false;
    const Staging::Withheld withheld = staging.release(context(2), [&] { unused = true; });
    EXPECT_EQ(withheld, Staging::Withheld{mine});
    EXPECT_TRUE(unused) << "no registration remains there";
    EXPECT_EQ(returned, 0);
    const auto more = take_all(other, 1);
    EXPECT_EQ(std::count(more.begin(), more.end(), mine), 0);
    staging.ended(context(2), withheld);
    EXPECT_EQ(returned, 1);
    staging.put(others);
    const auto again = take_all(ending, 1);
    EXPECT_EQ(std::count(again.begin(), again.end(), mine), 1);
}

TEST_F(StagingTest, RegistrationsEndWithTheirContext) {
    Staging::StreamUsePtr ending, other;
    std::byte* const mine = staging.take(ending, 1).data();
    current = context(2);
    std::byte* const others = staging.take(other, 1).data();  // registered in the first
    EXPECT_EQ(registrations, 1);
    bool unused = false;
    staging.withhold();
    staging.put(mine);
    const Staging::Withheld withheld = staging.release(context(1), [&] { unused = true; });
    EXPECT_FALSE(unused) << "another context's stream uses a part";
    EXPECT_TRUE(staging.take(other, 1).empty()) << "it is not handed out, and no more fits";
    staging.put(others);
    EXPECT_TRUE(unused);
    staging.ended(context(1), withheld);
    EXPECT_FALSE(staging.take(other, 1).empty());
    EXPECT_EQ(registrations, 2) << "it had been unregistered";
}

}  // namespace
}  // namespace gpupool::test
