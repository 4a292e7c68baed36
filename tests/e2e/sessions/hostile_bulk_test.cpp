// Bulk data that violates the rules: unasked for, too much, repeated, missing, or never read.

#include "tests/e2e/sessions/hostile_client.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;

class HostileBulk : public HostileSession {
  protected:
    void SetUp() override {
        HostileSession::SetUp();
        stream_ = client_->make_stream();
        slab_ = client_->make_slab(128 * kMiB);
    }
    std::uint64_t upload(std::uint64_t transfer, std::size_t bytes, CUstream stream) {
        const auto number =
            client_->add<calls::gpCopyToDevice>(slab_, bytes, transfer, std::uint64_t{0},
                                                static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
        client_->flush();
        return number;
    }
    void expect_end() {
        EXPECT_TRUE(client_->ended());
        EXPECT_TRUE(is_gone(*daemon_, client_->session()));
    }

    CUstream stream_ = nullptr;
    CUdeviceptr slab_ = 0;
};

TEST_F(HostileBulk, UnrequestedDataEndsTheSession) {
    client_->send_bulk(1234, 0, 4096);
    expect_end();
}

TEST_F(HostileBulk, MoreDataThanRequestedEndsTheSession) {
    upload(1, 2 * kMiB, stream_);
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset, pull.bytes + 1);
    expect_end();
}

TEST_F(HostileBulk, DataAtAnotherOffsetEndsTheSession) {
    upload(1, 2 * kMiB, stream_);
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset + 8, 64);
    expect_end();
}

TEST_F(HostileBulk, RepeatedDataEndsTheSession) {
    upload(1, kMiB, stream_);
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset, pull.bytes);
    client_->send_bulk(1, pull.offset, pull.bytes);
    expect_end();
}

// The pieces may have any size, as long as they are in order.
TEST_F(HostileBulk, DataInTinyPiecesIsAccepted) {
    const auto number = upload(1, 256 << 10, stream_);
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    std::size_t at = 0;
    for (std::size_t crumb = 1; at < pull.bytes; crumb = crumb * 3 + 1) {
        const std::size_t bytes = std::min<std::size_t>(crumb, pull.bytes - at);
        client_->send_bulk(1, pull.offset + at, bytes);
        at += bytes;
    }
    EXPECT_EQ(client_->result_of(number), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

// With one name for two transfers the data's destination would be ambiguous.
TEST_F(HostileBulk, RepeatedTransferNumberIsRefused) {
    const CUstream other = client_->make_stream();
    upload(1, kMiB, stream_);
    const auto second = upload(1, kMiB, other);
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    EXPECT_NE(client_->result_of(second).value_or(1), CUDA_SUCCESS);
    client_->send_bulk(1, pull.offset, pull.bytes);
    EXPECT_TRUE(client_->alive());
    // The name may be used again when its transfer is complete.
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(stream_), CUDA_SUCCESS);
    const auto third = upload(1, kMiB, other);
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset, pull.bytes);
    EXPECT_EQ(client_->result_of(third), CUDA_SUCCESS);
}

// A transfer whose data never arrives blocks only its stream, and the session can still be ended.
TEST_F(HostileBulk, MissingDataBlocksOnlyItsStream) {
    upload(1, 64 * kMiB, stream_);
    const CUstream other = client_->make_stream();
    EXPECT_EQ(client_->call<calls::cuMemsetD8Async>(slab_, static_cast<unsigned char>(1), std::size_t{16}, other),
              CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(other), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuStreamQuery>(stream_), CUDA_ERROR_NOT_READY);
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(HostileBulk, OrderlyStopEndsASessionThatWaitsForData) {
    upload(1, 64 * kMiB, stream_);
    bystander_survives_ = false;
    daemon_->signal(SIGTERM);
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(daemon_->wait_for_end(milliseconds(5000)), 0);
}

// The client asks for far more data than the connection buffers and never reads it. The worker's memory stays within
// its limits, other sessions are not affected, and the session ends with its connection.
TEST_F(HostileBulk, UnreadDataDoesNotGrowTheWorker) {
    client_->flags = 0;
    client_->stop_acknowledging();
    for (std::uint64_t transfer = 1; transfer <= 64; ++transfer) {
        client_->add<calls::gpCopyFromDevice>(slab_, 128 * kMiB, transfer, stream_);
    }
    ASSERT_TRUE(client_->flush());
    EXPECT_LT(client_->stable_resident_bytes(), 1024 * kMiB);
    Program visitor(*daemon_, {std::string(TEST_PROGRAMS) + "/vector_add"});
    EXPECT_TRUE(visitor.succeeds());
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

// The same while the daemon stops: a dispatcher that waits for room must not keep the worker alive.
TEST_F(HostileBulk, OrderlyStopEndsASessionThatNeverReads) {
    client_->flags = codec::kReplyWanted;
    client_->stop_acknowledging();
    for (std::uint64_t transfer = 1; transfer <= 64; ++transfer) {
        client_->add<calls::gpCopyFromDevice>(slab_, 128 * kMiB, transfer, stream_);
    }
    ASSERT_TRUE(client_->flush());
    (void)client_->stable_resident_bytes();  // the dispatcher waits for room
    bystander_survives_ = false;
    daemon_->signal(SIGTERM);
    EXPECT_EQ(daemon_->wait_for_end(milliseconds(5000)), 0);
    EXPECT_FALSE(process_exists(static_cast<pid_t>(client_->session().worker_process_id)));
}

// The client never reads its replies. The worker stops accepting its commands, and ends with the connection.
TEST_F(HostileBulk, UnreadRepliesThrottleOnlyTheirSession) {
    client_->stop_acknowledging();
    std::size_t free_bytes = 0, total_bytes = 0;
    bool taken = true;
    for (int i = 0; i < 4'000'000 && taken; ++i) {  // until the replies exceed what the worker retains
        client_->add<calls::cuMemGetInfo_v2>(&free_bytes, &total_bytes);
        if (i % 10'000 == 0) {
            taken = client_->flush(milliseconds(1500));
        }
    }
    const std::vector<unsigned char> data(32u << 10);
    for (int i = 0; i < 32'000 && taken; ++i) {  // a gigabyte
        client_->add<calls::gpCopyToDevice>(slab_, data.size(), std::uint64_t{0}, std::uint64_t{0}, data.data(),
                                            data.size(), stream_);
        taken = client_->flush(milliseconds(1500));
    }
    EXPECT_FALSE(taken) << "the worker takes commands without end";
    EXPECT_LT(client_->worker_resident_bytes(), 1024 * kMiB);
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

}  // namespace
}  // namespace gpupool::test
