#include "client/core/graphs/user_objects.h"

#include <gtest/gtest.h>

namespace gpupool::client {
namespace {

CUuserObject object(std::uintptr_t number) {
    return reinterpret_cast<CUuserObject>(number);
}
CUgraph graph(std::uintptr_t number) {
    return reinterpret_cast<CUgraph>(number);
}
CUgraphNode node(std::uintptr_t number) {
    return reinterpret_cast<CUgraphNode>(number);
}
CUgraphExec executable(std::uintptr_t number) {
    return reinterpret_cast<CUgraphExec>(number);
}

class UserObjectsTest : public testing::Test {
  protected:
    UserObjectsTest() {
        objects_.create(object(1), {[](void* count) { ++*static_cast<int*>(count); }, &runs_}, 1);
    }

    int destroyed() {
        run(due_);
        due_.clear();
        return runs_;
    }
    void move_to(std::uintptr_t number) { ASSERT_EQ(objects_.retain(graph(number), object(1), 1, true), CUDA_SUCCESS); }

    UserObjects objects_;
    UserObjects::Destructors due_;
    int runs_ = 0;
};

TEST_F(UserObjectsTest, LastReleaseDestroysOnce) {
    EXPECT_EQ(objects_.retain(object(1), 2), CUDA_SUCCESS);
    EXPECT_EQ(objects_.release(object(1), 2, due_), CUDA_SUCCESS);
    EXPECT_EQ(destroyed(), 0);
    EXPECT_EQ(objects_.release(object(1), 1, due_), CUDA_SUCCESS);
    EXPECT_EQ(destroyed(), 1);
    EXPECT_EQ(objects_.release(object(1), 1, due_), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(destroyed(), 1);
}

TEST_F(UserObjectsTest, MoreReleasesThanReferencesDestroyNothing) {
    EXPECT_EQ(objects_.release(object(1), 2, due_), CUDA_SUCCESS);
    EXPECT_EQ(destroyed(), 0);
}

TEST_F(UserObjectsTest, GraphsClonesAndChildrenHaveReferences) {
    move_to(1);
    objects_.clone(graph(1), graph(2));
    objects_.add_child(graph(2), graph(3), node(1));
    objects_.destroy(graph(1), due_);
    objects_.destroy(graph(2), due_);
    EXPECT_EQ(destroyed(), 0);
    objects_.clone(graph(3), graph(4));
    objects_.destroy(node(1), due_);
    objects_.destroy(graph(3), due_);
    EXPECT_EQ(destroyed(), 0);
    objects_.destroy(graph(4), due_);
    EXPECT_EQ(destroyed(), 1);
}

TEST_F(UserObjectsTest, DestroyedParentReleasesItsChildren) {
    move_to(1);
    objects_.add_child(graph(1), graph(2), node(1));
    objects_.destroy(graph(1), due_);
    EXPECT_EQ(destroyed(), 0);
    objects_.destroy(graph(2), due_);
    EXPECT_EQ(destroyed(), 1);
}

TEST_F(UserObjectsTest, ExecutableThatWasNeverLaunchedReleasesAtOnce) {
    move_to(1);
    EXPECT_TRUE(objects_.instantiate(executable(1), graph(1)));
    objects_.destroy(graph(1), due_);
    EXPECT_EQ(objects_.destroy(executable(1), due_), 0u);
    EXPECT_EQ(destroyed(), 1);
}

TEST_F(UserObjectsTest, LaunchedExecutableReleasesWhenItHasFinished) {
    move_to(1);
    EXPECT_TRUE(objects_.instantiate(executable(1), graph(1)));
    objects_.launch(executable(1));
    objects_.destroy(graph(1), due_);
    const std::uint64_t number = objects_.destroy(executable(1), due_);
    EXPECT_NE(number, 0u);
    EXPECT_EQ(destroyed(), 0);
    objects_.finish(number, due_);
    EXPECT_EQ(destroyed(), 1);
    objects_.finish(number, due_);
    EXPECT_EQ(destroyed(), 1);
}

TEST_F(UserObjectsTest, UpdateReplacesTheReferences) {
    move_to(1);
    EXPECT_FALSE(objects_.instantiate(executable(1), graph(2)));
    EXPECT_TRUE(objects_.update(executable(1), graph(1), due_));
    objects_.destroy(graph(1), due_);
    EXPECT_EQ(destroyed(), 0);
    EXPECT_FALSE(objects_.update(executable(1), graph(2), due_));
    EXPECT_EQ(destroyed(), 1);
}

}  // namespace
}  // namespace gpupool::client
