// Which commands are executed while the driver is closed, and in which order the others are taken later.

#include "server/worker/scheduling/set_aside.h"

#include <gtest/gtest.h>

#include <vector>

#include "protocol/calls/table.h"
#include "server/worker/scheduling/scheduler.h"

namespace gpupool::worker {
namespace {

class SetAsideTest : public ::testing::Test {
  protected:
    template <class Call>
    static Command command(std::uint32_t thread = 0) {
        Command made{};
        made.header.opcode = Call::kOpcode;
        made.header.thread = thread;
        return made;
    }
    template <class Call>
    [[nodiscard]] bool passes(std::uint32_t thread = 0) const {
        return set_aside.lets_pass(command<Call>(thread).header);
    }

    std::vector<bool> holds;
    SetAside set_aside{[this](bool held) { holds.push_back(held); }};
};

TEST_F(SetAsideTest, QueriesPassWhileNothingIsSetAside) {
    EXPECT_TRUE(passes<calls::cuStreamQuery>());
    EXPECT_TRUE(passes<calls::gpStreamWatch>());
    EXPECT_TRUE(passes<calls::gpEventWatch>());
    EXPECT_FALSE(passes<calls::gpLaunch>());
    set_aside.add(command<calls::gpLaunch>(1));
    EXPECT_FALSE(passes<calls::cuStreamQuery>()) << "the launch may be in that stream";
    EXPECT_TRUE(passes<calls::cuMemGetInfo_v2>(2)) << "a launch does not affect its answer";
    EXPECT_FALSE(passes<calls::cuMemGetInfo_v2>(1)) << "it must not overtake its own thread's commands";
    EXPECT_TRUE(passes<calls::gpHostFunctionDone>(1)) << "the GPU may be waiting for it";
}

TEST_F(SetAsideTest, ActionsRunFirstAndCommandsInOrder) {
    std::vector<std::uint32_t> taken;
    set_aside.add(command<calls::gpLaunch>(1));
    set_aside.add(command<calls::gpLaunch>(2));
    set_aside.add_action([&] { taken.push_back(0); });
    const auto take = [&](std::size_t most) {
        return set_aside.take([&] { return taken.size() < most; },
                              [&](const Command& each) { taken.push_back(each.header.thread); });
    };
    EXPECT_FALSE(take(0));
    EXPECT_TRUE(take(2));
    EXPECT_EQ(taken, (std::vector<std::uint32_t>{0, 1}));
    EXPECT_FALSE(set_aside.empty());
    EXPECT_TRUE(take(9));
    EXPECT_EQ(taken, (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST_F(SetAsideTest, ManyCommandsThrottleTheClientUntilAllAreTaken) {
    for (std::size_t i = 0; i < 2 * Scheduler::kThrottleAt; ++i) {
        set_aside.add(command<calls::gpLaunch>());
    }
    EXPECT_EQ(holds, std::vector<bool>{true});
    std::size_t left = 2 * Scheduler::kThrottleAt - 1;
    const auto take = [&] { return set_aside.take([&] { return left != 0; }, [&](const Command&) { --left; }); };
    take();
    EXPECT_EQ(holds, std::vector<bool>{true});
    left = 1;
    take();
    EXPECT_EQ(holds, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace gpupool::worker
