#include "client/core/graphs/graph_memories.h"

#include <gtest/gtest.h>

namespace gpupool::client {
namespace {

using Does = GraphMemories::Does;
using Freed = GraphMemories::Freed;

CUgraph graph(std::uintptr_t number) {
    return reinterpret_cast<CUgraph>(number);
}
CUgraphExec executable(std::uintptr_t number) {
    return reinterpret_cast<CUgraphExec>(number);
}

class GraphMemoriesTest : public testing::Test {
  protected:
    CUresult launch(std::uintptr_t number) {
        changes_.clear();
        return memories_.launch(executable(number), changes_);
    }

    GraphMemories memories_;
    std::vector<GraphMemories::Change> changes_;
};

TEST_F(GraphMemoriesTest, LaunchesAllocateAndTheProgramFreesOverAndOver) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.instantiate(executable(1), graph(1), false);
    EXPECT_EQ(memories_.free(0x1000), Freed::no);
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(launch(1), CUDA_SUCCESS);
        ASSERT_EQ(changes_.size(), 1u);
        EXPECT_TRUE(changes_[0].allocated);
        EXPECT_EQ(launch(1), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(memories_.free(0x1000), Freed::yes);
        EXPECT_EQ(memories_.free(0x1000), Freed::no);
    }
}

TEST_F(GraphMemoriesTest, GraphThatFreesItsMemoryLeavesNothingAllocated) {
    memories_.add_captured(7, 0x1000, Does::allocates);
    memories_.add_captured(7, 0x1000, Does::frees);
    memories_.end_capture(7, graph(1));
    memories_.instantiate(executable(1), graph(1), false);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(memories_.free(0x1000), Freed::no);
}

TEST_F(GraphMemoriesTest, AnotherGraphFreesOnlyAllocatedMemory) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.add(graph(2), 0x1000, Does::frees);
    memories_.instantiate(executable(1), graph(1), false);
    memories_.instantiate(executable(2), graph(2), false);
    EXPECT_EQ(launch(2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(launch(2), CUDA_SUCCESS);
    ASSERT_EQ(changes_.size(), 1u);
    EXPECT_FALSE(changes_[0].allocated);
    EXPECT_EQ(launch(2), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphMemoriesTest, LaunchThatFreesFirstMayBeRepeated) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.instantiate(executable(1), graph(1), true);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(memories_.free(0x1000), Freed::yes);
}

TEST_F(GraphMemoriesTest, MemoryIsForgottenWhenNothingCanAllocateIt) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.add(graph(1), 0x2000, Does::allocates);
    memories_.instantiate(executable(1), graph(1), false);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_EQ(memories_.free(0x1000), Freed::yes);
    EXPECT_TRUE(memories_.destroy(graph(1)).empty());
    EXPECT_EQ(memories_.destroy(executable(1)), std::vector<CUdeviceptr>{0x1000});
    EXPECT_EQ(memories_.free(0x2000), Freed::last);
    EXPECT_EQ(memories_.free(0x2000), Freed::no);
}

TEST_F(GraphMemoriesTest, ChildGraphThatWasMovedBelongsToItsParent) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.move(graph(1), graph(2));
    memories_.instantiate(executable(1), graph(2), false);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_TRUE(memories_.destroy(graph(1)).empty());
    EXPECT_EQ(memories_.free(0x1000), Freed::yes);
}

TEST_F(GraphMemoriesTest, AbandonedCaptureAllocatesNothing) {
    memories_.add_captured(7, 0x1000, Does::allocates);
    EXPECT_EQ(memories_.end_capture(7, nullptr), std::vector<CUdeviceptr>{0x1000});
    memories_.instantiate(executable(1), graph(1), false);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_TRUE(changes_.empty());
}

TEST_F(GraphMemoriesTest, RefusedLaunchIsUndone) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.add(graph(2), 0x1000, Does::frees);
    memories_.instantiate(executable(1), graph(1), false);
    memories_.instantiate(executable(2), graph(2), false);
    ASSERT_EQ(launch(1), CUDA_SUCCESS);
    const GraphMemories::Changes undone = memories_.undo(changes_);
    ASSERT_EQ(undone.size(), 1u);
    EXPECT_FALSE(undone[0].allocated);
    EXPECT_EQ(memories_.free(0x1000), Freed::no);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
    ASSERT_EQ(launch(2), CUDA_SUCCESS);
    memories_.undo(changes_);
    EXPECT_EQ(memories_.free(0x1000), Freed::yes);
}

TEST_F(GraphMemoriesTest, LaunchThatFailsLaterIsUndone) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.instantiate(executable(1), graph(1), false);
    ASSERT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_TRUE(memories_.sent(10, changes_).empty());
    EXPECT_TRUE(memories_.failed(9).empty());
    EXPECT_EQ(memories_.failed(10).size(), 1u);
    EXPECT_TRUE(memories_.failed(10).empty()) << "once";
    ASSERT_EQ(launch(1), CUDA_SUCCESS);
    EXPECT_TRUE(memories_.failed(11).empty()) << "reported before the caller knows the command";
    EXPECT_EQ(memories_.sent(11, changes_).size(), 1u);
    EXPECT_EQ(launch(1), CUDA_SUCCESS);
}

TEST_F(GraphMemoriesTest, RefusedFreeIsUndone) {
    memories_.add(graph(1), 0x1000, Does::allocates);
    memories_.instantiate(executable(1), graph(1), false);
    ASSERT_EQ(launch(1), CUDA_SUCCESS);
    memories_.undo_free(0x1000, memories_.free(0x1000));
    EXPECT_EQ(memories_.free(0x1000), Freed::yes);
    ASSERT_EQ(launch(1), CUDA_SUCCESS);
    memories_.destroy(graph(1));
    memories_.destroy(executable(1));
    memories_.undo_free(0x1000, memories_.free(0x1000));
    EXPECT_EQ(memories_.free(0x1000), Freed::last);
}

}  // namespace
}  // namespace gpupool::client
