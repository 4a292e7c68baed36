// The memory that a graph node's parameters point to lives exactly as long as the node.
#include "client/core/graphs/node_storages.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace gpupool::client {
namespace {

CUgraphNode node(std::uintptr_t number) {
    return reinterpret_cast<CUgraphNode>(number);
}
CUgraph graph(std::uintptr_t number) {
    return reinterpret_cast<CUgraph>(number);
}
NodeStorage of_bytes(std::size_t bytes) {
    return {std::vector<unsigned char>(bytes, 7), {}, {}};
}

TEST(NodeStorages, EndWithTheirNodeOrItsGraph) {
    NodeStorages storages;
    for (std::uintptr_t i = 1; i <= 10; ++i) {
        storages.put(node(i), graph(i % 2 + 1), of_bytes(100));
    }
    storages.remove(node(1));
    storages.remove(node(1));
    EXPECT_EQ(storages.size(), 9u);
    storages.remove(graph(2));  // 1, 3, 5, 7, 9
    EXPECT_EQ(storages.size(), 5u);
    storages.remove(graph(3));
    storages.remove(graph(1));
    EXPECT_EQ(storages.size(), 0u);
}

TEST(NodeStorages, NewStorageReplacesTheNodesOldOne) {
    NodeStorages storages;
    storages.put(node(1), nullptr, of_bytes(10));
    storages.put(node(1), nullptr, of_bytes(20));
    EXPECT_EQ(storages.size(), 1u);
}

TEST(NodeStorages, LatestStoragesOfUnknownGraphsAreKept) {
    constexpr std::size_t kEach = 1u << 20;
    constexpr std::uintptr_t kMax = NodeStorages::kMaxUnplacedBytes / kEach;
    NodeStorages storages;
    storages.put(node(5000), graph(1), of_bytes(kEach));
    for (std::uintptr_t i = 1; i <= 3 * kMax; ++i) {
        storages.put(node(i), nullptr, of_bytes(kEach));
        ASSERT_LE(storages.size(), kMax + 1);
        if (i % 3 == 0) {
            storages.remove(node(i));
        }
    }
    EXPECT_GT(storages.size(), kMax / 2);
    storages.remove(graph(1));
    storages.put(node(9999), nullptr, of_bytes(NodeStorages::kMaxUnplacedBytes));
    EXPECT_EQ(storages.size(), 1u) << "the latest is kept, whatever its size";
}

}  // namespace
}  // namespace gpupool::client
