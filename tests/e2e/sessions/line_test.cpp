// Programs over a bad line: a slow one changes nothing but the time; a broken one causes errors and leaves nothing
// behind.

#include <list>

#include "protocol/wire/frame.h"
#include "tests/e2e/sessions/proxy.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Line : public SessionTest {
  protected:
    // Runs the programs that test order (several threads on one stream, one thread that waits for another's copy, bulk
    // data both ways), all at the same time, twice.
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
    // A program that works without end meets the line's fault: it gets an error, and nothing of it is left.
    void expect_loss(const transport::faulty::Faults& up, const transport::faulty::Faults& down) {
        BadLine line(daemon_->address(), up, down);
        // With compression hardly any data would pass.
        Program program(*daemon_, session_program("busy"),
                        {"GPUPOOL_SERVER=" + line.address(), "GPUPOOL_COMPRESSION=never"});
        const int status = program.wait();
        EXPECT_TRUE(WIFEXITED(status)) << std::hex << status << program.errors();
        EXPECT_NE(program.output().find("failed:"), std::string::npos) << program.output() << program.errors();
        EXPECT_TRUE(eventually([&] { return others().empty() && daemon_->children() == 1; }, milliseconds(2000)));
    }
};

TEST_F(Line, OrderHoldsUnderLoad) {
    run_order_programs(daemon_->address());
}

TEST_F(Line, OrderHoldsOverASlowLineInTinyPieces) {
    transport::faulty::Faults faults;
    faults.delay = std::chrono::microseconds(1500);
    faults.split_bytes = 9000;
    BadLine line(daemon_->address(), faults, faults);
    run_order_programs(line.address());
}

TEST_F(Line, CutGivesErrorsAndLeavesNothing) {
    for (const std::uint64_t bytes : {100u, 5'000u, 20'000u, 100'000u, 3'000'000u, 20'000'001u}) {
        transport::faulty::Faults cut;
        cut.cut_after_sent = bytes;
        expect_loss(cut, {});
        expect_loss({}, cut);
    }
}

// The damage is as long as the longest bulk frame of a program's copies, so it cannot affect data alone.
TEST_F(Line, DamageGivesErrorsAndLeavesNothing) {
    for (const std::uint64_t at : {20'000u, 100'001u, 3'000'002u, 20'000'003u}) {
        transport::faulty::Faults damage;
        damage.corrupt_sent_at = at;
        damage.corrupt_bytes = (1u << 20) + wire::kHeaderBytes + sizeof(wire::BulkHeader);
        expect_loss(damage, {});
        expect_loss({}, damage);
    }
}

// A program that asks for more than the line carries is throttled, and loses nothing.
TEST_F(Line, DownloadsFasterThanTheLineAreThrottled) {
    for (const std::uint64_t rate : {4'000'000u, 12'500'000u}) {
        transport::faulty::Faults slow;
        slow.throttle_bytes_per_second = rate;
        BadLine line(daemon_->address(), {}, slow);
        Program program(*daemon_, session_program("download_flood"),
                        {"GPUPOOL_SERVER=" + line.address(), "GPUPOOL_COMPRESSION=never"});
        EXPECT_TRUE(program.succeeds()) << program.errors();
        // The limits are what may be unacknowledged (64 Ki) and the streams' throttling; measured 36,000 to 98,000.
        // When the throttling notice queued behind the data, 217,000 were accepted at the lower rate.
        EXPECT_GT(program.number("copies"), 0);
        EXPECT_LT(program.number("copies"), 160'000);
    }
}

}  // namespace
}  // namespace gpupool::test
