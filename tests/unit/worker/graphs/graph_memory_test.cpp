// Pinned memory of graphs, and the limits of a graph's shape.
#include <gtest/gtest.h>

#include <map>

#include "server/worker/graphs/graph_shape.h"
#include "server/worker/memory/pinned_memory.h"

namespace gpupool::test {
namespace {

using worker::PinnedMemory;

struct Calls {
    int registered = 0, unregistered = 0;
    CUresult result = CUDA_SUCCESS;
};
Calls calls;

class PinnedMemoryTest : public testing::Test {
  protected:
    PinnedMemoryTest() {
        calls = {};
        api.cuCtxGetCurrent = [](CUcontext* context) {
            *context = nullptr;
            return CUDA_SUCCESS;
        };
        api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
        api.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) {
            ++calls.registered;
            return calls.result;
        };
        api.cuMemHostUnregister = [](void*) {
            ++calls.unregistered;
            return CUDA_SUCCESS;
        };
    }
    void run_jobs() {
        for (auto jobs = std::exchange(jobs_, {}); const auto& job : jobs) {
            job();
        }
    }
    driver::Api api{};
    std::vector<std::function<void()>> jobs_;
    PinnedMemory memory{api, [this](std::function<void()> job) { jobs_.push_back(std::move(job)); }};
};

// Returning memory would make the driver wait for work that may itself wait for the worker.
TEST_F(PinnedMemoryTest, IsReusedInsteadOfReturned) {
    PinnedMemory::BlockPtr first, second;
    ASSERT_EQ(memory.allocate(100, first), CUDA_SUCCESS);
    ASSERT_EQ(memory.allocate(5000, second), CUDA_SUCCESS);
    EXPECT_EQ(memory.used_bytes(), 4096u + 8192u);
    std::byte* const place = second->data();
    place[0] = std::byte{1};
    first.reset();
    second.reset();
    EXPECT_EQ(memory.used_bytes(), 4096u + 8192u);
    ASSERT_EQ(memory.allocate(8000, second), CUDA_SUCCESS);
    EXPECT_EQ(second->data(), place);
    EXPECT_EQ(place[0], std::byte{0});
    EXPECT_EQ(calls.registered, 2);
    EXPECT_EQ(calls.unregistered, 0);
    EXPECT_TRUE(jobs_.empty());
}

TEST_F(PinnedMemoryTest, IsNotReusedAfterItsContext) {
    PinnedMemory::BlockPtr idle, used;
    ASSERT_EQ(memory.allocate(100, idle), CUDA_SUCCESS);
    ASSERT_EQ(memory.allocate(100, used), CUDA_SUCCESS);
    idle.reset();
    memory.forget(nullptr);
    EXPECT_EQ(memory.used_bytes(), 4096u);
    used.reset();
    EXPECT_EQ(memory.used_bytes(), 0u);
    ASSERT_EQ(memory.allocate(100, used), CUDA_SUCCESS);
    EXPECT_EQ(calls.registered, 3);
}

TEST_F(PinnedMemoryTest, IsBounded) {
    PinnedMemory::BlockPtr half, rest, more;
    EXPECT_EQ(memory.allocate(PinnedMemory::kMaxBytes + 1, more), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(memory.allocate(~0ull, more), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_EQ(memory.allocate(PinnedMemory::kMaxBytes / 2, half), CUDA_SUCCESS);
    ASSERT_EQ(memory.allocate(PinnedMemory::kMaxBytes / 2, rest), CUDA_SUCCESS);
    EXPECT_EQ(memory.allocate(1, more), CUDA_ERROR_OUT_OF_MEMORY);
    half.reset();
    EXPECT_EQ(memory.allocate(1, more), CUDA_ERROR_OUT_OF_MEMORY) << "the idle block has another size";
    EXPECT_EQ(memory.allocate(1, more), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(jobs_.size(), 1u) << "it is returned once, on another thread, since this one may not wait";
    EXPECT_EQ(calls.unregistered, 0);
    run_jobs();
    EXPECT_EQ(calls.unregistered, 1);
    EXPECT_EQ(memory.allocate(1, more), CUDA_SUCCESS);
}

TEST_F(PinnedMemoryTest, DriversRefusalCostsNothing) {
    calls.result = CUDA_ERROR_INVALID_CONTEXT;
    PinnedMemory::BlockPtr block;
    EXPECT_EQ(memory.allocate(100, block), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(block, nullptr);
    EXPECT_EQ(memory.used_bytes(), 0u);
}

// Graphs by number. Each node is an empty node, or a child graph node with that number.
std::map<std::uintptr_t, std::vector<std::uintptr_t>> graphs;

class GraphShapeTest : public testing::Test {
  protected:
    GraphShapeTest() {
        graphs.clear();
        api.cuGraphGetNodes = [](CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
            const auto& all = graphs[reinterpret_cast<std::uintptr_t>(graph)];
            *count = all.size();
            for (std::size_t i = 0; nodes != nullptr && i < all.size(); ++i) {
                nodes[i] = reinterpret_cast<CUgraphNode>(all[i]);
            }
            return CUDA_SUCCESS;
        };
        api.cuGraphNodeGetType = [](CUgraphNode node, CUgraphNodeType* type) {
            *type = node == nullptr ? CU_GRAPH_NODE_TYPE_EMPTY : CU_GRAPH_NODE_TYPE_GRAPH;
            return CUDA_SUCCESS;
        };
        api.cuGraphChildGraphNodeGetGraph = [](CUgraphNode node, CUgraph* graph) {
            *graph = reinterpret_cast<CUgraph>(node);
            return CUDA_SUCCESS;
        };
    }
    CUresult shape_of(std::uintptr_t graph, std::uint32_t most = 1000) {
        return worker::shape_of(api, reinterpret_cast<CUgraph>(graph), most, shape);
    }
    driver::Api api{};
    worker::GraphShape shape;
};

TEST_F(GraphShapeTest, CountsNestedGraphs) {
    graphs[1] = {0, 2, 2};
    graphs[2] = {0, 0, 3};
    graphs[3] = {0};
    ASSERT_EQ(shape_of(1), CUDA_SUCCESS);
    EXPECT_EQ(shape.nodes, 11u);
    EXPECT_EQ(shape.depth, 3u);
    EXPECT_FALSE(shape.needs_client);
    EXPECT_EQ(shape_of(1, 11), CUDA_SUCCESS);
    EXPECT_EQ(shape_of(1, 10), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(GraphShapeTest, StopsAtTheLimits) {
    for (std::uintptr_t i = 1; i < worker::kMaxGraphDepth; ++i) {
        graphs[i] = {i + 1};
    }
    graphs[worker::kMaxGraphDepth] = {0};
    EXPECT_EQ(shape_of(1), CUDA_SUCCESS);
    EXPECT_EQ(shape.depth, worker::kMaxGraphDepth);
    graphs[worker::kMaxGraphDepth] = {worker::kMaxGraphDepth + 1};
    EXPECT_EQ(shape_of(1), CUDA_ERROR_OUT_OF_MEMORY);
    graphs[1] = {1};
    EXPECT_EQ(shape_of(1), CUDA_ERROR_OUT_OF_MEMORY) << "a graph within itself has no end";
    for (std::uintptr_t i = 1; i < 60; ++i) {
        graphs[i] = {i + 1, i + 1};
    }
    EXPECT_EQ(shape_of(1), CUDA_ERROR_OUT_OF_MEMORY) << "the check must end as well";
}

}  // namespace
}  // namespace gpupool::test
