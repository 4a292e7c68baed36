// Programs over a bad network. A slow network changes nothing but the time. If the connection breaks, the program gets
// errors and the server ends the session.

#include <list>

#include "protocol/wire/frame.h"
#include "tests/e2e/sessions/proxy.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class BadNetwork : public SessionTest {
  protected:
    // Runs two of each program that tests order (several threads on one stream, one thread that waits for another's
    // copy, bulk data both ways), all at the same time.
    void run_order_programs(const std::string& server) {
        std::list<Program> programs;
        for (int round = 0; round < 2; ++round) {
            for (const char* name : {"order_one_stream", "release_by_other_thread", "both_directions"}) {
                programs.emplace_back(*daemon_, std::vector<std::string>{std::string(GPU_PROGRAMS) + "/" + name},
                                      std::vector<std::string>{"GPUPOOL_SERVER=" + server});
            }
        }
        for (Program& program : programs) {
            EXPECT_TRUE(program.succeeds(milliseconds(150000)));
        }
    }
    // Runs a program that works until it gets an error. It must get one from the fault, and its session must end.
    void expect_loss(const transport::faulty::Faults& up, const transport::faulty::Faults& down) {
        FaultyProxy proxy(daemon_->address(), up, down);
        // Compressed data would be too short to reach the fault.
        Program program(*daemon_, session_program("busy"),
                        {"GPUPOOL_SERVER=" + proxy.address(), "GPUPOOL_COMPRESSION=never"});
        const int status = program.wait();
        EXPECT_TRUE(WIFEXITED(status)) << std::hex << status << program.errors();
        EXPECT_NE(program.output().find("failed:"), std::string::npos) << program.output() << program.errors();
        EXPECT_TRUE(eventually([&] { return others().empty() && daemon_->children() == 1; }, milliseconds(2000)));
    }
};

TEST_F(BadNetwork, OrderHoldsUnderLoad) {
    run_order_programs(daemon_->address());
}

TEST_F(BadNetwork, OrderHoldsOverASlowNetworkInTinyPieces) {
    transport::faulty::Faults faults;
    faults.delay = std::chrono::microseconds(1500);
    faults.split_bytes = 9000;
    FaultyProxy proxy(daemon_->address(), faults, faults);
    run_order_programs(proxy.address());
}

TEST_F(BadNetwork, LostConnectionGivesErrorsAndEndsSession) {
    for (const std::uint64_t bytes : {100u, 5'000u, 20'000u, 100'000u, 3'000'000u, 20'000'001u}) {
        transport::faulty::Faults cut;
        cut.cut_after_sent = bytes;
        expect_loss(cut, {});
        expect_loss({}, cut);
    }
}

// The damage is as long as the longest bulk frame of a program's copies, so it always damages a frame's header as well,
// which is checked.
TEST_F(BadNetwork, DamageGivesErrorsAndEndsSession) {
    for (const std::uint64_t at : {20'000u, 100'001u, 3'000'002u, 20'000'003u}) {
        transport::faulty::Faults damage;
        damage.corrupt_sent_at = at;
        damage.corrupt_bytes = (1u << 20) + wire::kHeaderBytes + sizeof(wire::BulkHeader);
        expect_loss(damage, {});
        expect_loss({}, damage);
    }
}

// A program that requests downloads faster than the network carries them is throttled.
TEST_F(BadNetwork, DownloadsFasterThanTheNetworkAreThrottled) {
    for (const std::uint64_t rate : {4'000'000u, 12'500'000u}) {
        transport::faulty::Faults slow;
        slow.throttle_bytes_per_second = rate;
        FaultyProxy proxy(daemon_->address(), {}, slow);
        Program program(*daemon_, session_program("download_flood"),
                        {"GPUPOOL_SERVER=" + proxy.address(), "GPUPOOL_COMPRESSION=never"});
        EXPECT_TRUE(program.succeeds()) << program.errors();
        // 64 Ki records may be unacknowledged, and streams are throttled: 36,000 to 98,000 copies were measured. With a
        // throttling notice that queued behind the data it was 217,000 at the lower rate.
        EXPECT_GT(program.number("copies"), 0);
        EXPECT_LT(program.number("copies"), 160'000);
    }
}

}  // namespace
}  // namespace gpupool::test
