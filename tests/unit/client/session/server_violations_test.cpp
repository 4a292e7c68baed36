// A server that violates the protocol: every thread that waits for it is notified at once that the session is lost.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <ostream>
#include <thread>
#include <vector>

#include "tests/unit/client/server.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using codec::NoticeType;
using codec::ReplyHeader;
using codec::ReplyKind;

constexpr std::uint16_t kOpcode = 7;

// The outcome for an application thread that waits for a reply while the server sends what `say` sends.
enum class Outcome { answered, lost, still_waiting };

Outcome outcome_of(const std::function<void(Server&, std::uint32_t thread)>& say) {
    Server& server = Server::fresh();
    std::promise<std::uint32_t> waiting;
    std::packaged_task<bool()> wait([&waiting] {
        client::ReplySlot& slot = client::this_thread().reply;
        slot.expect(kOpcode);
        waiting.set_value(client::this_thread().index);
        return slot.wait().lost;
    });
    std::future<bool> lost = wait.get_future();
    std::thread thread(std::move(wait));
    say(server, waiting.get_future().get());
    const bool ended = lost.wait_for(5s) == std::future_status::ready;
    if (!ended) {
        client::lose_all_replies();  // lets the thread end
    }
    thread.join();
    return !ended ? Outcome::still_waiting : lost.get() ? Outcome::lost : Outcome::answered;
}

TEST(ServerViolations, AnswerIsNoViolation) {
    EXPECT_EQ(outcome_of([](Server& server, std::uint32_t thread) {
                  server.send(record(ReplyKind::result, kOpcode, thread));
                  EXPECT_FALSE(server.session->lost());
              }),
              Outcome::answered);
}

// The worker may have sent the pull before it received the client's cancellation.
TEST(ServerViolations, PullOfACancelledTransferIsNoViolation) {
    EXPECT_EQ(outcome_of([](Server& server, std::uint32_t thread) {
                  const auto transfer = server.session->transfers.begin_upload(std::vector<std::byte>(8));
                  server.session->transfers.cancel(transfer);
                  server.send(notice(NoticeType::pull, codec::PullNotice{transfer, 0, 8}));
                  EXPECT_FALSE(server.session->lost());
                  server.send(record(ReplyKind::result, kOpcode, thread));
              }),
              Outcome::answered);
}

struct Violation {
    const char* name;
    std::function<void(Server&, std::uint32_t thread)> say;
};

void PrintTo(const Violation& violation, std::ostream* out) {
    *out << violation.name;
}

class EndsTheSession : public testing::TestWithParam<Violation> {};

TEST_P(EndsTheSession, WakesTheWaitingThread) {
    EXPECT_EQ(outcome_of(GetParam().say), Outcome::lost);
}

INSTANTIATE_TEST_SUITE_P(
    ServerViolations, EndsTheSession,
    testing::Values(
        Violation{"ReplyToAnotherCall",
                  [](Server& s, std::uint32_t thread) { s.send(record(ReplyKind::result, kOpcode + 1, thread)); }},
        Violation{"ReplyToNobody",
                  [](Server& s, std::uint32_t) { s.send(record(ReplyKind::result, kOpcode, 0xffff)); }},
        Violation{"RecordOfNoKind",
                  [](Server& s, std::uint32_t thread) { s.send(record(static_cast<ReplyKind>(2), kOpcode, thread)); }},
        Violation{"HalfAReply",
                  [](Server& s, std::uint32_t) { s.send(std::vector<std::byte>(sizeof(ReplyHeader) / 2)); }},
        Violation{"ReplyThatClaimsTooMuch",
                  [](Server& s, std::uint32_t thread) {
                      auto bytes = record(ReplyKind::result, kOpcode, thread, 8);
                      bytes.resize(bytes.size() - 8);
                      s.send(bytes);
                  }},
        Violation{"NoticeOfNoKind", [](Server& s, std::uint32_t) { s.send(record(ReplyKind::notice, 99, 0, 64)); }},
        Violation{"ShortNotice",
                  [](Server& s, std::uint32_t) {
                      s.send(record(ReplyKind::notice, static_cast<std::uint16_t>(NoticeType::pull), 0, 8));
                  }},
        Violation{"PullOfNothing",
                  [](Server& s, std::uint32_t) {
                      s.send(notice(NoticeType::pull, codec::PullNotice{77, 0, 8}));
                  }},
        Violation{"PullOfWhatIsOver",
                  [](Server& s, std::uint32_t) {
                      const auto transfer = s.session->transfers.begin_upload(std::vector<std::byte>(8));
                      s.send(notice(NoticeType::pull, codec::PullNotice{transfer, 0, 8}));
                      s.session->transfers.wait_sent(transfer);
                      EXPECT_FALSE(s.session->lost());
                      s.send(notice(NoticeType::pull, codec::PullNotice{transfer, 0, 8}));
                  }},
        Violation{"FailureOfNoTransfer",
                  [](Server& s, std::uint32_t) {
                      s.send(notice(NoticeType::transfer_failed, codec::TransferFailedNotice{77}));
                  }},
        Violation{
            "DataAheadOfNoTransferTaken",
            [](Server& s, std::uint32_t) { s.send(notice(NoticeType::ahead_taken, codec::AheadTakenNotice{77})); }},
        Violation{"SlabThatNobodyAskedFor",
                  [](Server& s, std::uint32_t) {
                      s.send(notice(NoticeType::slab_prepared, codec::SlabPreparedNotice{1u << 21, 0, 0}));
                  }},
        Violation{"EndOfWhatIsNoStream",
                  [](Server& s, std::uint32_t) {
                      s.send(notice(NoticeType::stream_complete, codec::StreamCompleteNotice{0, 0, 0, 0, 0}));
                  }},
        Violation{"PullBeyondTheEnd",
                  [](Server& s, std::uint32_t) {
                      const auto transfer = s.session->transfers.begin_upload(std::vector<std::byte>(8));
                      s.send(notice(NoticeType::pull, codec::PullNotice{transfer, 8, 1}));
                  }},
        Violation{"TurnOfNoFunction",
                  [](Server& s, std::uint32_t) {
                      s.send(notice(NoticeType::host_function, codec::HostFunctionNotice{77, 0, 0}));
                  }},
        Violation{
            "PiecesWithoutLanes",
            [](Server& s, std::uint32_t) { s.send(notice(NoticeType::pieces_sent, codec::PiecesSentNotice{1})); }},
        Violation{"FrameOfAnotherType",
                  [](Server& s, std::uint32_t) { s.send(std::vector<std::byte>(8), wire::FrameType::control); }}),
    [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace gpupool::test

#if defined(__SANITIZE_THREAD__)
// A session is never destroyed, so the threads of a lost one are not joined.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
    return "report_thread_leaks=0";
}
#endif
