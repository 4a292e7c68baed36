// Which device nodes belong to a session's GPUs, from the text files of NVIDIA's driver.

#include "server/isolation/device_nodes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpupool::test {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<unsigned>;

class DeviceNodes : public ::testing::Test {
  protected:
    DeviceNodes() {
        char path[] = "/tmp/gpupool-nodes-XXXXXX";
        folder_ = ::mkdtemp(path);
        // The order of the bus is not that of the nodes.
        add("0000:1b:00.0", "GPU-11111111-0000-0000-0000-000000000000", 3);
        add("0000:43:00.0", "GPU-22222222-0000-0000-0000-000000000000", 0);
    }
    ~DeviceNodes() override { fs::remove_all(folder_); }
    void add(const std::string& bus, const std::string& uuid, unsigned number) const {
        fs::create_directories(folder_ + "/" + bus);
        std::ofstream(folder_ + "/" + bus + "/information")
            << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 205\nGPU UUID: \t " << uuid
            << "\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\nBus Location: \t " << bus << "\nDevice Minor: \t " << number
            << "\nGPU Firmware: \t 570\nGPU Excluded:\t No\n";
    }
    Numbers of(const std::string& visible) const { return isolation::gpus_of(visible, folder_); }

    std::string folder_;
};

TEST_F(DeviceNodes, AreFoundByUuid) {
    EXPECT_EQ(of("GPU-11111111-0000-0000-0000-000000000000"), Numbers{3});
    EXPECT_EQ(of("GPU-11111111-0000-0000-0000-000000000000,GPU-22222222-0000-0000-0000-000000000000"), (Numbers{0, 3}));
}

TEST_F(DeviceNodes, AreAllIfAGpuIsNotKnown) {
    for (const char* visible : {"", "0", "GPU-1111", "MIG-11111111-0000-0000-0000-000000000000",
                                "GPU-11111111-0000-0000-0000-000000000000,1"}) {
        EXPECT_EQ(of(visible), Numbers{}) << visible;
    }
    EXPECT_EQ(isolation::gpus_of("GPU-11111111-0000-0000-0000-000000000000", folder_ + "/none"), Numbers{});
}

}  // namespace
}  // namespace gpupool::test
