// Which devices a program sees: CUDA_VISIBLE_DEVICES selects among those that the server's operator offers.

#include <memory>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Devices : public ::testing::Test {
  protected:
    void start(std::vector<std::string> environment) {
        environment.push_back("GPUPOOL_SOFTGPU_DEVICES=4");
        daemon_ = std::make_unique<Daemon>(session_settings(), std::move(environment));
    }
    // The PCI buses of the devices that a program sees, in its order, as in "3 1". The software GPU's device 0 has bus
    // 1.
    std::string seen(const std::vector<std::string>& environment = {}) {
        Program program(*daemon_, {std::string(TEST_PROGRAMS) + "/device_query"}, environment);
        const int status = program.wait();
        const std::string output = program.output();
        errors_ = program.errors();
        std::string buses;
        for (std::size_t at = 0; (at = output.find("PCI bus id 0000:", at)) != std::string::npos; ++at) {
            buses += (buses.empty() ? "" : " ") + std::to_string(std::stoi(output.substr(at + 16, 2), nullptr, 16));
        }
        return status == 0 ? buses : "none";
    }

    std::unique_ptr<Daemon> daemon_;
    std::string errors_;
};

TEST_F(Devices, VisibleDevicesSelectsAndOrders) {
    start({});
    EXPECT_EQ(seen(), "1 2 3 4");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=2,0"}), "3 1");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=1,-1,0"}), "2");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=GPU-67707570-6f6f-6c2d-736f-667467707503"}), "4");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=7"}), "none");
    EXPECT_NE(errors_.find("CUDA_VISIBLE_DEVICES shows none"), std::string::npos) << errors_;
}

// CUDA_VISIBLE_DEVICES= is the usual way to run a program without a GPU.
TEST_F(Devices, HidingAllDevicesContactsNoServer) {
    start({});
    for (const char* none : {"CUDA_VISIBLE_DEVICES=-1", "CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=-1,0"}) {
        EXPECT_EQ(seen({none}), "none") << none;
        EXPECT_EQ(errors_.find("gpupool:"), std::string::npos) << errors_;
    }
    EXPECT_EQ(daemon_->log().find("session "), std::string::npos) << daemon_->log();
}

TEST_F(Devices, OperatorsHiddenDevicesStayHidden) {
    start({"CUDA_VISIBLE_DEVICES=3,1"});
    EXPECT_EQ(seen(), "4 2");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=1"}), "2");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=2"}), "none");
    EXPECT_EQ(seen({"CUDA_VISIBLE_DEVICES=GPU-67707570-6f6f-6c2d-736f-667467707500"}), "none");
}

// A session's device numbers count only the devices that it sees; status must report the server's own.
TEST_F(Devices, StatusShowsTheServersDeviceNumbers) {
    start({});
    Program program(*daemon_, session_program("steady"), {"CUDA_VISIBLE_DEVICES=2,0"});
    ASSERT_TRUE(program.says("ready"));
    EXPECT_TRUE(eventually([&] { return session_of(*daemon_, program.process()).memory_used_bytes > 0; }));
    const auto status = daemon_->status();
    ASSERT_TRUE(status && status->devices.size() == 4 && status->sessions.size() == 1);
    EXPECT_EQ(status->sessions[0].device, 2u);
    EXPECT_EQ(status->driver.find(".."), std::string::npos) << status->driver;
    EXPECT_EQ(status->devices[2].memory_used_bytes, status->sessions[0].memory_used_bytes);
    EXPECT_EQ(status->devices[0].memory_used_bytes, 0u);
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

}  // namespace
}  // namespace gpupool::test
