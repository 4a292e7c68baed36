// Lanes: for any number of lanes and any network, all data of a copy has arrived when its completion is reported. Other
// sessions and connections without a session get no lane, and a broken lane ends only its own session.

#include "protocol/wire/lanes.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <signal.h>

#include <cstring>
#include <list>
#include <optional>
#include <thread>

#include "protocol/schema/session.capnp.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/wire/handshake_io.h"
#include "tests/e2e/sessions/hostile_client.h"
#include "tests/e2e/sessions/proxy.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;
constexpr long long kSessionLost = 46;  // CUDA_ERROR_DEVICE_UNAVAILABLE

std::vector<std::string> lanes_program(const std::string& mode, int rounds = 2) {
    auto words = session_program(mode);
    words.push_back(std::to_string(rounds));
    return words;
}

std::vector<std::string> with_lanes(int count, const std::string& server = "") {
    std::vector<std::string> environment = {"GPUPOOL_LANES=" + std::to_string(count), "GPUPOOL_LOG=-"};
    if (!server.empty()) {
        environment.push_back("GPUPOOL_SERVER=" + server);
    }
    return environment;
}

bool has_lanes(const Program& program, int count) {
    return program.errors().find(std::to_string(count) + " lanes (connections for bulk data) are open") !=
           std::string::npos;
}

class LaneCopies : public SessionTest, public ::testing::WithParamInterface<int> {};

TEST_P(LaneCopies, AreRightAtTheirCompletion) {
    const int count = GetParam();
    Program program(*daemon_, lanes_program("lanes"), with_lanes(count));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_EQ(program.number("transfers"), 4 * 2 * 7);
    EXPECT_TRUE(has_lanes(program, count)) << program.errors();
}

TEST_P(LaneCopies, OfChangingMemoryContinue) {
    Program program(*daemon_, lanes_program("lanes_raced"), with_lanes(GetParam()));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_EQ(program.number("transfers"), 7);
}

// The session's own connection is fast and the lanes are slow: completions arrive before their data.
TEST_P(LaneCopies, AreRightWhenCompletionsOvertakeData) {
    transport::faulty::Faults slow;
    slow.throttle_bytes_per_second = 60 * kMiB;
    slow.split_bytes = 90'000;
    FaultyProxy proxy(daemon_->address(), slow, slow);
    Program program(*daemon_, lanes_program("lanes", 1), with_lanes(GetParam(), proxy.address()));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_TRUE(has_lanes(program, GetParam())) << program.errors();
}

// The other way round: data sent ahead arrives before the command that it belongs to.
TEST_P(LaneCopies, AreRightWhenDataOvertakesCommands) {
    transport::faulty::Faults late;
    late.delay = milliseconds(5);
    FaultyProxy proxy(daemon_->address(), late, {}, FaultyProxy::Of::first_connection);
    Program program(*daemon_, lanes_program("lanes", 1), with_lanes(GetParam(), proxy.address()));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_TRUE(has_lanes(program, GetParam())) << program.errors();
}

// Each call waits for its reply, which a copy to the device sends when its data has arrived.
TEST_P(LaneCopies, AreRightWhenEachCallWaits) {
    auto environment = with_lanes(GetParam());
    environment.push_back("GPUPOOL_SYNC=1");
    Program program(*daemon_, lanes_program("lanes", 1), environment);
    EXPECT_TRUE(program.succeeds());
    EXPECT_TRUE(has_lanes(program, GetParam())) << program.errors();
}

INSTANTIATE_TEST_SUITE_P(Over, LaneCopies, ::testing::Values(2, 8));

// The programs that test order: several threads on one stream, one thread that waits for another's copy, bulk data both
// ways.
TEST_P(LaneCopies, KeepTheOrderOfPrograms) {
    std::list<Program> programs;
    for (const char* name : {"order_one_stream", "release_by_other_thread", "both_directions"}) {
        programs.emplace_back(*daemon_, std::vector<std::string>{std::string(GPU_PROGRAMS) + "/" + name},
                              with_lanes(GetParam()));
    }
    for (Program& program : programs) {
        EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    }
}

// Compression of data in both directions. The lanes break before uncompressed data would have passed.
class LaneCompression : public SessionTest {
  protected:
    // The network is slow enough that compression pays. A round is 64 MiB each way, half of it on either lane; each
    // lane breaks before two rounds.
    void run(const std::string& mode, int rounds) {
        transport::faulty::Faults narrow;
        narrow.throttle_bytes_per_second = 20 * kMiB;
        narrow.cut_after_sent = 60 * kMiB;
        proxy_.emplace(daemon_->address(), narrow, narrow);
        auto environment = with_lanes(2, proxy_->address());
        environment.push_back("GPUPOOL_COMPRESSION=" + mode);
        program_.emplace(*daemon_, lanes_program("lanes_zeros", rounds), environment);
    }
    std::optional<FaultyProxy> proxy_;
    std::optional<Program> program_;
};

// Compression starts automatically when the senders have measured how slow the network is.
TEST_F(LaneCompression, StartsAutomaticallyInBothDirections) {
    run("auto", 4);
    EXPECT_EQ(program_->number("wrong"), 0) << program_->errors();
    EXPECT_TRUE(program_->succeeds());
    EXPECT_TRUE(has_lanes(*program_, 2)) << program_->errors();
}

TEST_F(LaneCompression, CanBeForced) {
    run("always", 2);
    EXPECT_EQ(program_->number("wrong"), 0) << program_->errors();
    EXPECT_TRUE(program_->succeeds());
}

TEST_F(LaneCompression, CanBeForbidden) {
    run("never", 2);
    EXPECT_FALSE(program_->succeeds());
    EXPECT_NE(program_->output().find(" " + std::to_string(kSessionLost)), std::string::npos) << program_->output();
}

class OneLane : public SessionTest {};

// Bulk data over one connection is what the other session tests use.
TEST_F(OneLane, IsTheSessionsOwnConnection) {
    Program program(*daemon_, lanes_program("lanes", 1), with_lanes(1));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_FALSE(has_lanes(program, 1)) << program.errors();
}

class LaneFaults : public SessionTest {
  protected:
    void expect_loss(const transport::faulty::Faults& up, const transport::faulty::Faults& down) {
        FaultyProxy proxy(daemon_->address(), up, down);
        auto environment = with_lanes(4, proxy.address());
        environment.emplace_back("GPUPOOL_COMPRESSION=never");  // otherwise hardly any data would pass
        Program program(*daemon_, lanes_program("lanes_stream"), environment);
        EXPECT_EQ(program.number("error"), kSessionLost) << program.errors();
        EXPECT_TRUE(program.succeeds());
        EXPECT_TRUE(has_lanes(program, 4)) << program.errors();
        EXPECT_TRUE(eventually([&] { return others().empty() && daemon_->children() == 1; }, milliseconds(2000)));
    }
};

// Each connection is cut at this byte of its own stream, so a lane is cut first.
TEST_F(LaneFaults, CutGivesErrorsAndLeavesNothing) {
    for (const std::uint64_t bytes : {5'000'000u, 20'000'001u}) {
        transport::faulty::Faults cut;
        cut.cut_after_sent = bytes;
        expect_loss(cut, {});
        expect_loss({}, cut);
    }
}

// The damage is as long as the longest piece, so it cannot affect data alone.
TEST_F(LaneFaults, DamageGivesErrorsAndLeavesNothing) {
    transport::faulty::Faults damage;
    damage.corrupt_sent_at = 20'000'001;
    damage.corrupt_bytes = wire::Lanes::kMaxPieceBytes + sizeof(wire::BulkHeader) + wire::kHeaderBytes;
    expect_loss(damage, {});
    expect_loss({}, damage);
}

TEST_F(LaneFaults, WorkerDeathDuringACopyGivesAnErrorAtOnce) {
    Program victim(*daemon_, lanes_program("lanes_stream"), with_lanes(8));
    ASSERT_TRUE(victim.says("waiting"));
    const auto session = session_of(*daemon_, victim.process());
    const auto killed_at = now_ms();
    ASSERT_EQ(::kill(static_cast<pid_t>(session.worker_process_id), SIGKILL), 0);
    EXPECT_EQ(victim.number("error", milliseconds(10000)), kSessionLost);
    EXPECT_LE(victim.number("at") - killed_at, 1000);
    EXPECT_TRUE(victim.succeeds());
    EXPECT_TRUE(has_lanes(victim, 8)) << victim.errors();
    EXPECT_TRUE(is_gone(*daemon_, session));
}

TEST_F(LaneFaults, ProgramKilledDuringACopyLeavesNothing) {
    Program victim(*daemon_, lanes_program("lanes_stream"), with_lanes(8));
    ASSERT_TRUE(victim.says("waiting"));
    const auto session = session_of(*daemon_, victim.process());
    victim.signal(SIGKILL);
    EXPECT_TRUE(is_gone(*daemon_, session));
}

// The next daemon knows enough of the sessions that it took over to admit their lanes.
TEST_F(LaneFaults, SessionThatWasTakenOverGetsLanes) {
    Program program(*daemon_, lanes_program("lanes_wait", 1), with_lanes(3));
    ASSERT_TRUE(program.says("ready"));
    daemon_->sessions(2);
    daemon_->kill_hard();
    daemon_->start();
    daemon_->sessions(2);
    program.end_input();
    EXPECT_TRUE(program.succeeds());
    EXPECT_TRUE(has_lanes(program, 3)) << program.errors();
}

class LaneLimit : public SessionTest {
  protected:
    void SetUp() override {
        settings_ = "[limits]\nlanes = 2\n";
        SessionTest::SetUp();
    }
};

TEST_F(LaneLimit, IsSetByTheServer) {
    Program program(*daemon_, lanes_program("lanes", 1), with_lanes(8));
    EXPECT_TRUE(program.succeeds());
    EXPECT_TRUE(has_lanes(program, 2)) << program.errors();
}

// Hostile clients.
class HostileLanes : public HostileSession {
  protected:
    void SetUp() override {
        settings_ = "[limits]\nlanes = 3\n";
        HostileSession::SetUp();
    }

    // A connection that asks to be lane `index` of that session, and the server's answer.
    struct Asked {
        std::unique_ptr<transport::Connection> connection;
        wire::FrameType answer = wire::FrameType::hello;
        std::string message;
    };
    Asked ask(const std::string& session, std::vector<std::byte> token, std::uint32_t index) {
        capnp::MallocMessageBuilder message;
        auto hello = message.initRoot<schema::Hello>();
        hello.setProtocolVersion(schema::PROTOCOL_VERSION);
        auto lane = hello.initPurpose().initLane();
        lane.setSessionId(session.c_str());
        lane.setSessionToken({reinterpret_cast<const kj::byte*>(token.data()), token.size()});
        lane.setIndex(index);
        const auto words = capnp::messageToFlatArray(message);
        const auto bytes = words.asBytes();
        Asked asked;
        asked.connection = std::move(*transport::tcp::connect(*transport::Endpoint::parse(daemon_->address()),
                                                              transport::Clock::now() + std::chrono::seconds(5)));
        EXPECT_TRUE(wire::write_frame(*asked.connection, wire::FrameType::hello,
                                      std::as_bytes(std::span(bytes.begin(), bytes.size()))));
        const auto frame = wire::read_frame(*asked.connection, wire::kMaxPayloadBytes, milliseconds(10000));
        EXPECT_TRUE(frame) << (frame ? "" : frame.error().message);
        asked.answer = frame ? frame->type : wire::FrameType::hello;
        if (asked.answer == wire::FrameType::refused) {
            auto copy = kj::heapArray<capnp::word>(frame->payload.size() / sizeof(capnp::word));
            std::memcpy(copy.begin(), frame->payload.data(), frame->payload.size());
            asked.message = capnp::FlatArrayMessageReader(copy).getRoot<schema::Refused>().getMessage().cStr();
        }
        return asked;
    }
    Asked own_lane(std::uint32_t index) { return ask(client_->session_id(), client_->session_token(), index); }

    static bool send_piece(transport::Connection& to, std::uint64_t number, std::uint64_t transfer,
                           std::uint64_t offset, std::size_t bytes) {
        std::vector<std::byte> payload(sizeof(wire::BulkHeader) + bytes, std::byte{0x5a});
        const wire::BulkHeader bulk{transfer, offset};
        std::memcpy(payload.data(), &bulk, sizeof bulk);
        wire::FrameHeader header;
        header.payload_bytes = static_cast<std::uint32_t>(payload.size());
        header.sequence = number;
        header.type = wire::FrameType::bulk;
        header.payload_crc = wire::payload_crc(header.type, payload);
        std::array<std::byte, wire::kHeaderBytes> head;
        wire::encode(header, head);
        const transport::ConstBuffer buffers[] = {head, payload};
        return to.send(buffers).ok();
    }
    codec::PullNotice begin_upload(std::uint64_t transfer, std::size_t bytes) {
        if (slab_ == 0) {
            slab_ = client_->make_slab(16 * kMiB);
            stream_ = client_->make_stream();
        }
        number_ =
            client_->add<calls::gpCopyToDevice>(slab_, bytes, transfer, std::uint64_t{0},
                                                static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream_);
        client_->flush();
        codec::PullNotice pull{};
        EXPECT_TRUE(client_->wait_for_pull(transfer, pull));
        return pull;
    }
    std::uint64_t copy_ahead(std::uint64_t transfer, std::size_t bytes, std::uint64_t ahead_bytes, CUstream stream) {
        const auto number = client_->add<calls::gpCopyToDevice>(
            slab_, bytes, transfer, ahead_bytes, static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
        client_->flush();
        return number;
    }
    void expect_end() {
        EXPECT_TRUE(client_->ended());
        EXPECT_TRUE(is_gone(*daemon_, client_->session()));
        EXPECT_EQ(server_log().find("signal"), std::string::npos);
    }

    CUdeviceptr slab_ = 0;
    CUstream stream_ = nullptr;
    std::uint64_t number_ = 0;
};

TEST_F(HostileLanes, WrongTokenIsRefused) {
    const auto right = client_->session_token();
    ASSERT_EQ(right.size(), 32u);
    auto wrong = right;
    wrong.back() ^= std::byte{1};
    auto shorter = right, longer = right;
    shorter.pop_back();
    longer.insert(longer.end(), right.begin(), right.end());
    std::string message;
    for (const auto& token : {wrong, shorter, longer, std::vector<std::byte>{}}) {
        const auto asked = ask(client_->session_id(), token, 0);
        EXPECT_EQ(asked.answer, wire::FrameType::refused);
        EXPECT_TRUE(message.empty() || message == asked.message);
        message = asked.message;
    }
    // The answer for a session that does not exist is the same.
    EXPECT_EQ(ask("0123456789abcdef", right, 0).message, message);
    const auto own = own_lane(0);
    EXPECT_EQ(own.answer, wire::FrameType::ack) << "the index was not used up";
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileLanes, AnotherSessionsLaneIsRefused) {
    HostileClient victim(*daemon_, "victim");
    EXPECT_EQ(ask(victim.session_id(), client_->session_token(), 0).answer, wire::FrameType::refused);
    EXPECT_TRUE(victim.alive());
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileLanes, IndexAboveTheLimitOrInUseIsRefused) {
    std::vector<Asked> lanes;
    for (std::uint32_t index = 0; index < 3; ++index) {
        lanes.push_back(own_lane(index));
        EXPECT_EQ(lanes.back().answer, wire::FrameType::ack);
    }
    for (const std::uint32_t index : {0u, 2u, 3u, 63u, 64u, 0xffffffffu}) {
        const auto asked = own_lane(index);
        EXPECT_EQ(asked.answer, wire::FrameType::refused);
        EXPECT_NE(asked.message.find(std::to_string(index)), std::string::npos) << asked.message;
    }
    EXPECT_TRUE(client_->alive());
}

// A copy whose first `ahead_bytes` are sent ahead.
TEST_F(HostileLanes, DataSentAheadIsAccepted) {
    const auto lane = own_lane(1);
    begin_upload(1, kMiB);  // allocates what a copy needs
    const std::uint64_t transfer = codec::kTransferSentAhead | 2;
    ASSERT_TRUE(send_piece(*lane.connection, 1, transfer, kMiB, 1000));
    ASSERT_TRUE(client_->worker_waits());  // it has received the data
    const CUstream other = client_->make_stream();
    const auto number = copy_ahead(transfer, kMiB + 1000, kMiB + 1000, other);
    ASSERT_TRUE(send_piece(*lane.connection, 2, transfer, 0, kMiB));
    EXPECT_EQ(client_->result_of(number), CUDA_SUCCESS);
    EXPECT_EQ(client_->ahead_taken(), std::vector{transfer});
}

// All large chunks are taken at first, so the copy begins with a small chunk and continues with a large one. Pieces
// sent ahead and pieces pulled are cut separately, and meet where the former end.
TEST_F(HostileLanes, RestOfAPartlyAheadCopyIsPulled) {
    const auto lane = own_lane(0);
    const auto before = begin_upload(1, kMiB);
    for (std::uint64_t transfer = 2; transfer <= 8; ++transfer) {  // take 32, 32, 16, 8, 4, 2 and 1 of 95 chunks
        client_->add<calls::gpCopyToDevice>(slab_, 64 * kMiB, transfer, std::uint64_t{0},
                                            static_cast<const unsigned char*>(nullptr), std::size_t{0},
                                            client_->make_stream());
    }
    const CUstream last = client_->make_stream();
    const std::uint64_t transfer = codec::kTransferSentAhead | 100;
    const auto number = copy_ahead(transfer, 3 * kMiB + 1000, 2 * kMiB, last);
    EXPECT_TRUE(client_->alive());
    client_->send_bulk(1, before.offset, before.bytes);  // returns its chunk
    EXPECT_EQ(client_->result_of(number_), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
    ASSERT_TRUE(send_piece(*lane.connection, 1, transfer, 0, kMiB));
    ASSERT_TRUE(send_piece(*lane.connection, 2, transfer, kMiB, kMiB));
    codec::PullNotice pull{};
    for (std::uint64_t at = 2 * kMiB; at < 3 * kMiB + 1000; at += pull.bytes) {
        ASSERT_TRUE(client_->wait_for_pull(transfer, pull)) << at;
        ASSERT_EQ(pull.offset, at);
        client_->send_bulk(transfer, pull.offset, pull.bytes);
    }
    EXPECT_EQ(client_->result_of(number), CUDA_SUCCESS);
    EXPECT_EQ(client_->ahead_taken(), std::vector{transfer});
}

TEST_F(HostileLanes, DataAheadWithoutACopyEndsTheSession) {
    const auto lane = own_lane(0);
    for (std::uint64_t number = 1; number <= 64; ++number) {
        send_piece(*lane.connection, number, codec::kTransferSentAhead | number, 0, kMiB);
    }
    expect_end();
}

TEST_F(HostileLanes, DataAheadOfFailedCopiesIsDropped) {
    const auto lane = own_lane(0);
    begin_upload(1, kMiB);
    const CUstream unknown = client_->mint<CUstream>();
    for (std::uint64_t number = 1; number <= 128; number += 2) {  // more than the worker buffers early
        const std::uint64_t transfer = codec::kTransferSentAhead | (number + 1);
        ASSERT_TRUE(send_piece(*lane.connection, number, transfer, 0, kMiB));
        EXPECT_NE(client_->result_of(copy_ahead(transfer, 2 * kMiB, 2 * kMiB, unknown)), CUDA_SUCCESS);
        ASSERT_TRUE(send_piece(*lane.connection, number + 1, transfer, kMiB, kMiB));
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileLanes, MoreDataAheadThanTheCopyHasIsRefused) {
    begin_upload(1, kMiB);
    const CUstream other = client_->make_stream();
    for (const std::uint64_t bytes : {2 * kMiB + 1, 3 * kMiB, kMiB + 1, std::size_t{1}, ~std::size_t{0}}) {
        EXPECT_EQ(client_->result_of(copy_ahead(codec::kTransferSentAhead | 2, 2 * kMiB, bytes, other)),
                  CUDA_ERROR_INVALID_VALUE);
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileLanes, PulledPieceIsAccepted) {
    const auto lane = own_lane(1);
    const auto pull = begin_upload(1, kMiB);
    ASSERT_TRUE(send_piece(*lane.connection, 1, 1, pull.offset, pull.bytes));
    EXPECT_EQ(client_->result_of(number_), CUDA_SUCCESS);
}

TEST_F(HostileLanes, UnrequestedDataEndsTheSession) {
    const auto lane = own_lane(0);
    send_piece(*lane.connection, 1, 1234, 0, 200'000);
    expect_end();
}

TEST_F(HostileLanes, RepeatedPieceEndsTheSession) {
    const auto first = own_lane(0), second = own_lane(1);
    const auto pull = begin_upload(1, 4 * kMiB);
    send_piece(*first.connection, 1, 1, pull.offset, pull.bytes);
    send_piece(*second.connection, 2, 1, pull.offset, pull.bytes);
    expect_end();
}

TEST_F(HostileLanes, HalfAPieceEndsTheSession) {
    const auto lane = own_lane(0);
    const auto pull = begin_upload(1, kMiB);
    send_piece(*lane.connection, 1, 1, pull.offset, pull.bytes / 2);
    expect_end();
}

// The session's own connection sends a piece while a lane is in the middle of it.
TEST_F(HostileLanes, PieceOnTwoConnectionsAtOnceEndsTheSession) {
    const auto lane = own_lane(0);
    const auto pull = begin_upload(1, kMiB);
    std::vector<std::byte> head(wire::kHeaderBytes + sizeof(wire::BulkHeader));
    wire::FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(sizeof(wire::BulkHeader) + pull.bytes);
    header.sequence = 1;
    header.type = wire::FrameType::bulk;
    const wire::BulkHeader bulk{1, pull.offset};
    std::memcpy(head.data() + wire::kHeaderBytes, &bulk, sizeof bulk);
    header.payload_crc = wire::payload_crc(header.type, std::span(head).subspan(wire::kHeaderBytes));
    wire::encode(header, std::span(head).first<wire::kHeaderBytes>());
    const transport::ConstBuffer buffers[] = {head};
    ASSERT_TRUE(lane.connection->send(buffers));
    ASSERT_TRUE(client_->worker_waits());  // it has received the header
    EXPECT_TRUE(client_->alive());
    client_->send_bulk(1, pull.offset, 100);
    expect_end();
}

TEST_F(HostileLanes, OtherFrameTypeEndsTheSession) {
    const auto lane = own_lane(0);
    ASSERT_TRUE(wire::write_frame(*lane.connection, wire::FrameType::goodbye, {}));
    expect_end();
}

TEST_F(HostileLanes, ClosedLaneEndsTheSession) {
    auto lane = own_lane(0);
    ASSERT_EQ(lane.answer, wire::FrameType::ack);
    EXPECT_TRUE(client_->alive());
    lane.connection.reset();
    expect_end();
}

// Downloads use a lane that is never read. The worker's memory stays within its limits, and it ends when it is stopped.
TEST_F(HostileLanes, UnreadDataDoesNotGrowTheWorker) {
    const auto lane = own_lane(0);
    const CUstream stream = client_->make_stream();
    const CUdeviceptr slab = client_->make_slab(128 * kMiB);
    client_->flags = 0;
    for (std::uint64_t transfer = 1; transfer <= 16; ++transfer) {
        client_->add<calls::gpCopyFromDevice>(slab, 128 * kMiB, transfer, stream);
    }
    ASSERT_TRUE(client_->flush());
    EXPECT_LT(client_->stable_resident_bytes(), 1024 * kMiB);
    EXPECT_TRUE(client_->alive()) << "commands must still be served";
    bystander_survives_ = false;
    daemon_->signal(SIGTERM);
    EXPECT_EQ(daemon_->wait_for_end(milliseconds(5000)), 0);
    EXPECT_FALSE(process_exists(static_cast<pid_t>(client_->worker_process_id())));
}

}  // namespace
}  // namespace gpupool::test
