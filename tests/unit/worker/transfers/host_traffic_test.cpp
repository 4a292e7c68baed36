// The bandwidth of a session's copies, on a clock of the test.
#include "server/worker/transfers/host_traffic.h"

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace gpupool::test {
namespace {

using std::chrono::milliseconds;
using worker::HostTraffic;
using Way = HostTraffic::Way;

class Traffic : public testing::Test {
  protected:
    SessionCounters counters_;
    ManualClock clock_;
    HostTraffic traffic_{counters_, clock_};
};

TEST_F(Traffic, IsCountedWithoutALimit) {
    traffic_.count(Way::in, 10);
    traffic_.count(Way::in, 20);
    traffic_.count(Way::out, 5);
    EXPECT_EQ(counters_.bytes_in, 30u);
    EXPECT_EQ(counters_.bytes_out, 5u);
    EXPECT_TRUE(traffic_.may_go(Way::in));
}

TEST_F(Traffic, KeepsItsAverage) {
    traffic_.limit(1000);
    std::uint64_t copied = 0;
    for (int ms = 0; ms < 10'000; ++ms) {
        while (traffic_.may_go(Way::in)) {
            traffic_.count(Way::in, 250);
            copied += 250;
        }
        clock_.advance(milliseconds(1));
    }
    EXPECT_NEAR(static_cast<double>(copied), 10'000, 300) << "1000 bytes a second, one piece, and 20 ms in advance";
}

TEST_F(Traffic, OfOneDirectionLeavesTheOtherAlone) {
    traffic_.limit(1000);
    traffic_.count(Way::in, 5000);
    EXPECT_FALSE(traffic_.may_go(Way::in));
    EXPECT_TRUE(traffic_.may_go(Way::out));
    clock_.advance(milliseconds(4970));
    EXPECT_FALSE(traffic_.may_go(Way::in));
    clock_.advance(milliseconds(10));
    EXPECT_TRUE(traffic_.may_go(Way::in)) << "20 ms were unused before";
}

TEST_F(Traffic, GetsNoCreditForATimeWithoutCopies) {
    traffic_.limit(1000);
    clock_.advance(std::chrono::hours(1));
    traffic_.count(Way::out, 1000);
    EXPECT_FALSE(traffic_.may_go(Way::out));
    clock_.advance(milliseconds(979));
    EXPECT_FALSE(traffic_.may_go(Way::out));
}

TEST_F(Traffic, ANewLimitForgetsTheDebt) {
    traffic_.limit(1);
    traffic_.count(Way::in, 1u << 30);
    traffic_.limit(HostTraffic::kUnlimited);
    EXPECT_TRUE(traffic_.may_go(Way::in));
    traffic_.limit(1000);
    EXPECT_TRUE(traffic_.may_go(Way::in));
}

}  // namespace
}  // namespace gpupool::test
