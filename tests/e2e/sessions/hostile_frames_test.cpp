// Bytes, frames and records that no real client sends. The session ends with a reason in the log; other sessions
// continue.

#include <random>
#include <thread>

#include "tests/e2e/sessions/hostile_client.h"

namespace gpupool::test {
namespace {

using wire::FrameType;

class HostileFrames : public HostileSession {
  protected:
    void expect_end() {
        EXPECT_TRUE(client_->ended());
        EXPECT_TRUE(is_gone(*daemon_, client_->session()));
    }
    // Sends a record whose header is the test's.
    void send_record(const codec::CommandHeader& header, std::size_t body_bytes = 0) {
        std::vector<std::byte> payload(sizeof header + body_bytes);
        std::memcpy(payload.data(), &header, sizeof header);
        ASSERT_TRUE(client_->send_frame(FrameType::commands, payload));
    }
    static codec::CommandHeader record(std::uint32_t bytes, std::uint64_t number = 2) {
        codec::CommandHeader header{};
        header.bytes = bytes;
        header.opcode = calls::cuCtxSynchronize::kOpcode;
        header.flags = codec::kReplyWanted;
        header.number = number;
        return header;
    }
};

TEST_F(HostileFrames, GarbageEndsTheSession) {
    std::mt19937 random(1);
    std::vector<std::byte> noise(4096);
    for (auto& byte : noise) {
        byte = static_cast<std::byte>(random());
    }
    client_->send_bytes(noise);
    expect_end();
}

TEST_F(HostileFrames, FrameThatClaims4GiBEndsTheSession) {
    auto header = client_->next_header(FrameType::commands, {});
    header.payload_bytes = 0xffffffff;
    const auto before = client_->worker_resident_bytes();
    EXPECT_TRUE(client_->send_header(header, {}));
    EXPECT_LT(client_->worker_resident_bytes(), before + (64u << 20));
    expect_end();
}

TEST_F(HostileFrames, DamagedPayloadEndsTheSession) {
    const std::vector<std::byte> payload(64);
    auto header = client_->next_header(FrameType::commands, payload);
    header.payload_crc ^= 1;
    client_->send_header(header, payload);
    expect_end();
}

TEST_F(HostileFrames, SkippedSequenceEndsTheSession) {
    auto header = client_->next_header(FrameType::control, {});
    header.sequence += 5;
    client_->send_header(header, {});
    expect_end();
}

TEST_F(HostileFrames, AcknowledgementOfAnUnsentFrameEndsTheSession) {
    auto header = client_->next_header(FrameType::control, {});
    header.acknowledged = 1'000'000;
    client_->send_header(header, {});
    expect_end();
}

TEST_F(HostileFrames, HelloInTheSessionEndsIt) {
    client_->send_frame(FrameType::hello, std::vector<std::byte>(64));
    expect_end();
}

// A partial frame and then silence: the worker cannot distinguish it from a slow network. It holds nothing of other
// sessions, and ends with its connection.
TEST_F(HostileFrames, TruncatedFrameWaitsAndEndsWithItsConnection) {
    const std::vector<std::byte> payload(1000);
    const auto header = client_->next_header(FrameType::commands, payload);
    client_->send_header(header, std::span(payload).first(10));
    EXPECT_TRUE(client_->worker_waits());
    EXPECT_TRUE(process_exists(static_cast<pid_t>(client_->session().worker_process_id)));
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(HostileFrames, TruncatedHeaderWaitsAndEndsWithItsConnection) {
    client_->send_bytes(std::as_bytes(std::span("GPF1", 4)));
    EXPECT_TRUE(client_->worker_waits());
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(HostileFrames, OrderlyStopEndsASessionInTheMiddleOfAFrame) {
    const std::vector<std::byte> payload(1000);
    client_->send_header(client_->next_header(FrameType::commands, payload), std::span(payload).first(10));
    bystander_survives_ = false;
    daemon_->signal(SIGTERM);
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(daemon_->wait_for_end(milliseconds(5000)), 0);
    EXPECT_FALSE(process_exists(static_cast<pid_t>(client_->session().worker_process_id)));
}

TEST_F(HostileFrames, RecordLargerThanItsFrameEndsTheSession) {
    send_record(record(4096), 64);
    expect_end();
}

TEST_F(HostileFrames, RecordSmallerThanItsHeaderEndsTheSession) {
    send_record(record(8), 64);
    expect_end();
}

TEST_F(HostileFrames, RecordOfOddSizeEndsTheSession) {
    send_record(record(37), 64);
    expect_end();
}

TEST_F(HostileFrames, RecordOfSizeZeroEndsTheSession) {
    send_record(record(0), 64);
    expect_end();
}

TEST_F(HostileFrames, TrailingBytesEndTheSession) {
    send_record(record(sizeof(codec::CommandHeader)), 8);
    expect_end();
}

TEST_F(HostileFrames, CommandOutOfOrderEndsTheSession) {
    send_record(record(sizeof(codec::CommandHeader), 40));
    expect_end();
}

TEST_F(HostileFrames, RepeatedCommandEndsTheSession) {
    send_record(record(sizeof(codec::CommandHeader), 1));
    expect_end();
}

// Truncated arguments: of a simple call, and every prefix of one with text and arrays.
TEST_F(HostileFrames, TruncatedArgumentsEndTheSession) {
    const ImageHash hash{1, 2};
    const unsigned char data[40] = {};
    for (const std::size_t cut : {std::size_t{0}, std::size_t{8}, std::size_t{24}, std::size_t{56}}) {
        HostileClient client(*daemon_);
        client.make_context();
        const ImageHash* given_hash = &hash;
        std::uint64_t offset = 0, unpacked_bytes = 0;
        const unsigned char* given_data = data;
        std::size_t bytes = sizeof data;
        const void* const addresses[] = {&given_hash, &offset, &unpacked_bytes, &given_data, &bytes, nullptr};
        std::vector<std::byte> body(codec::command_bytes<calls::gpImageData>(addresses));
        codec::Writer out(body.data());
        codec::write_command<calls::gpImageData>(out, addresses);
        ASSERT_LT(cut, body.size());
        client.add_record(calls::gpImageData::kOpcode, std::span(body).first(cut));
        client.flush();
        EXPECT_TRUE(client.ended()) << cut << " bytes";
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileFrames, ReasonIsLogged) {
    send_record(record(4096), 64);
    expect_end();
    EXPECT_TRUE(eventually([&] { return server_log().find("malformed command record") != std::string::npos; }));
}

}  // namespace
}  // namespace gpupool::test
