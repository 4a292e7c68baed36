// The accounting of graphs' allocations against the quota, over a driver with an H200's measured values.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "server/worker/memory/device_memory.h"

namespace gpupool::test {
namespace {

using worker::GraphMemory;
using worker::GraphMemoryUse;

constexpr std::uint64_t kMiB = 1u << 20;
std::uint64_t reserved = 0;  // what the driver has reserved
std::uint64_t idle = 0;      // the part of it that a trim releases
unsigned trims = 0;

class GraphAllocations : public testing::Test {
  protected:
    GraphAllocations() {
        reserved = idle = trims = 0;
        api.cuDeviceGetGraphMemAttribute = [](CUdevice, CUgraphMem_attribute, void* value) {
            *static_cast<cuuint64_t*>(value) = reserved;
            return CUDA_SUCCESS;
        };
        api.cuDeviceGraphMemTrim = [](CUdevice) {
            ++trims;
            reserved -= std::exchange(idle, 0);
            return CUDA_SUCCESS;
        };
    }
    static GraphMemoryUse graph(std::uint64_t bytes, bool frees_all) {
        GraphMemoryUse use;
        use.needs[0] = bytes;
        use.frees_all = frees_all;
        return use;
    }
    // After the launch the driver has reserved `after`.
    CUresult launch(GraphMemoryUse& use, std::uint64_t after, CUstream in = nullptr) {
        const std::uint64_t used = account.used_bytes(0);
        GraphMemory::Charge charge;
        const CUresult result = memory.charge(api, use, in, charge);
        charged_bytes = charge.any() ? account.used_bytes(0) - used : 0;
        if (result == CUDA_SUCCESS) {
            reserved = after;
            memory.end(api, use, in, std::move(charge), result);
        }
        return result;
    }
    driver::Api api{};
    worker::MemoryAccount account{1, 64 * kMiB};
    worker::GraphMemory memory{account};
    std::uint64_t charged_bytes = 0;  // before the last launch
    const CUstream other = reinterpret_cast<CUstream>(16);
};

// Graphs that free their memory in step share it; each one that keeps its memory needs its own.
TEST_F(GraphAllocations, KeptMemoryIsChargedPerGraph) {
    std::array<GraphMemoryUse, 4> graphs;
    graphs.fill(graph(20 * kMiB, false));
    for (GraphMemoryUse& one : graphs) {
        EXPECT_EQ(launch(one, 32 * kMiB), CUDA_SUCCESS);
    }
    EXPECT_EQ(launch(graphs[0], 32 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(launch(graphs[1], 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(launch(graphs[2], 96 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(account.used_bytes(0), 64 * kMiB);
}

TEST_F(GraphAllocations, RelaunchIsChargedOnce) {
    GraphMemoryUse one = graph(40 * kMiB, false);
    EXPECT_EQ(launch(one, 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(launch(one, 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged_bytes, 0u);
    EXPECT_EQ(launch(one, 64 * kMiB, other), CUDA_ERROR_OUT_OF_MEMORY) << "another stream's are not the same";
}

TEST_F(GraphAllocations, FreedMemoryIsSharedWithinAStream) {
    GraphMemoryUse first = graph(20 * kMiB, true), second = graph(30 * kMiB, true), keeper = graph(10 * kMiB, false);
    EXPECT_EQ(launch(first, 32 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(launch(second, 32 * kMiB), CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(launch(first, 32 * kMiB), CUDA_SUCCESS);
        EXPECT_EQ(charged_bytes, 0u) << i;
        EXPECT_EQ(launch(second, 32 * kMiB), CUDA_SUCCESS);
        EXPECT_EQ(charged_bytes, 0u) << i;
    }
    EXPECT_EQ(launch(keeper, 32 * kMiB), CUDA_SUCCESS);  // the keeper took the memory that they share
    EXPECT_EQ(launch(first, 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged_bytes, 32 * kMiB);
}

TEST_F(GraphAllocations, TrimWithoutEffectChangesNothing) {
    GraphMemoryUse one = graph(34 * kMiB, true);
    EXPECT_EQ(launch(one, 64 * kMiB), CUDA_SUCCESS);
    memory.trim_if_any(api, 0);
    EXPECT_EQ(trims, 1u);
    EXPECT_EQ(launch(one, 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged_bytes, 0u);
    idle = 64 * kMiB;
    memory.trim_if_any(api, 0);
    EXPECT_EQ(account.used_bytes(0), 0u);
    EXPECT_EQ(launch(one, 64 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(charged_bytes, 64 * kMiB);
}

}  // namespace
}  // namespace gpupool::test
