// The session's account of device memory: memory that is mapped into arrays.
#include "server/worker/memory/device_memory.h"

#include <gtest/gtest.h>

namespace gpupool::worker {
namespace {

constexpr std::uint64_t kBytes = 4u << 20;
constexpr std::uint64_t kArray = 0x900000000010;

// Memory of cuMemCreate that one handle names, and a sparse array, which takes no memory itself.
struct SparseArray : testing::Test {
    DeviceMemory memory{std::make_unique<MemoryAccount>(1, 0)};
    std::shared_ptr<SharedAllocation> allocation = std::make_shared<SharedAllocation>();

    void SetUp() override {
        allocation->bytes = kBytes;
        memory.account.force(0, kBytes);
        memory.add_reference(77, allocation);
        memory.arrays[kArray] = {{0, 0}, nullptr, {}};
    }
    void release_handle() {
        --allocation->references;
        memory.release_if_unused(*allocation);
    }
    std::uint64_t used() const { return memory.account.used_bytes(0); }
};

TEST_F(SparseArray, KeepsTheMemoryThatIsMappedIntoIt) {
    memory.note_tiles(memory.arrays[kArray], allocation);
    memory.note_tiles(memory.arrays[kArray], allocation);  // further tiles
    release_handle();
    EXPECT_EQ(used(), kBytes);
    EXPECT_TRUE(memory.forget_array(kArray));
    EXPECT_EQ(used(), 0u);
}

TEST_F(SparseArray, LeavesTheMemoryToItsHandle) {
    memory.note_tiles(memory.arrays[kArray], allocation);
    EXPECT_TRUE(memory.forget_array(kArray));
    EXPECT_EQ(used(), kBytes);
    release_handle();
    EXPECT_EQ(used(), 0u);
}

}  // namespace
}  // namespace gpupool::worker
