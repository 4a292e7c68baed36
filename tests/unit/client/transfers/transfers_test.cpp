// Bulk data between the application and the worker: where it is written, when it is read, and which calls wait for it.
#include "client/core/transfers/transfers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "protocol/codec/record.h"
#include "tests/conformance/lanes_fixture.h"
#include "tests/support/manual_clock.h"
#include "tests/support/transport/inproc/connection.h"
#include "tests/support/waiting.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using client::Transfers;

// The worker's end: keeps the received data by transfer.
class Worker final : public wire::Receiver {
  public:
    std::vector<std::byte> wait_for(std::uint64_t transfer, std::size_t bytes) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, 60s, [&] { return landed_[transfer] >= bytes; });
        return data_[transfer];
    }
    std::size_t landed(std::uint64_t transfer) {
        const std::lock_guard lock(mutex_);
        return landed_[transfer];
    }

  private:
    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        std::vector<std::byte>& data = data_[transfer];
        data.reserve(1u << 20);  // must not move while a payload is read into it
        data.resize(std::max<std::size_t>(data.size(), offset + bytes));
        return std::span(data).subspan(offset, bytes);
    }
    void on_bulk(std::uint64_t transfer, std::uint64_t, std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        landed_[transfer] += bytes;
        changed_.notify_all();
    }
    void on_frame(wire::FrameType, std::unique_ptr<std::byte[]>, std::size_t) override {}
    void on_closed(const Error&) override {}

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, std::vector<std::byte>> data_;
    std::map<std::uint64_t, std::size_t> landed_;
};

class IgnoringReceiver final : public wire::Receiver {
    std::span<std::byte> bulk_destination(std::uint64_t, std::uint64_t, std::size_t) override { return {}; }
    void on_bulk(std::uint64_t, std::uint64_t, std::size_t) override {}
    void on_frame(wire::FrameType, std::unique_ptr<std::byte[]>, std::size_t) override {}
    void on_closed(const Error&) override {}
};

// Never destroyed, because the thread that answers pulls lives as long as the process.
struct Client {
    IgnoringReceiver ignored;
    Worker worker;
    std::unique_ptr<wire::Channel> channel, worker_channel;
    ManualClock clock;
    Transfers transfers{clock};

    explicit Client(wire::Lanes* lanes) {
        auto [here, there] = transport::inproc::make_pair(1u << 20);
        channel = std::make_unique<wire::Channel>(std::move(here), ignored);
        worker_channel = std::make_unique<wire::Channel>(std::move(there), worker);
        channel->start();
        worker_channel->start();
        transfers.start(*channel, lanes);
    }
    // Waits until so many of the test's threads wait for transfers, and no pull can be answered.
    bool wait_for_waiters(std::size_t count) { return clock.wait_for_waiters(1 + count); }
    static Client& fresh(wire::Lanes* lanes = nullptr) {
        static auto& all = *new std::vector<std::unique_ptr<Client>>;
        return *all.emplace_back(std::make_unique<Client>(lanes));
    }
};

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        data[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(seed));
    }
    return data;
}

TEST(Downloads, LandOnlyInTheirPlace) {
    Transfers transfers;
    std::vector<std::byte> memory(100);
    const std::uint64_t transfer = transfers.begin_download(memory.data(), memory.size());
    EXPECT_EQ(transfers.place(transfer, 10, 90).data(), memory.data() + 10);
    EXPECT_TRUE(transfers.place(transfer, 10, 91).empty());
    EXPECT_TRUE(transfers.place(transfer, 101, 0).empty());
    EXPECT_TRUE(transfers.place(transfer, ~std::uint64_t{0}, 2).empty());
    EXPECT_TRUE(transfers.place(transfer + 1, 0, 1).empty());
    EXPECT_TRUE(transfers.writes_into(memory.data() + 99, 1));
    EXPECT_FALSE(transfers.writes_into(memory.data() + 100, 1));
    transfers.landed(transfer, 60);
    EXPECT_TRUE(transfers.writes_into(memory.data(), 1)) << "a part has not arrived yet";
    transfers.landed(transfer, 40);
    EXPECT_FALSE(transfers.writes_into(memory.data(), 100));
    EXPECT_TRUE(transfers.place(transfer, 0, 1).empty()) << "it has ended";
}

bool in_order(std::uint64_t transfer) {
    return (transfer & codec::kTransferInOrder) != 0;
}

// Over lanes, data of the earlier download might land last.
TEST(Downloads, IntoTheSameMemoryStayInOrder) {
    Transfers transfers;
    std::vector<std::byte> memory(wire::Lanes::kLeastPieceBytes + 100);
    const std::span<std::byte> first(memory.data(), wire::Lanes::kLeastPieceBytes);
    const std::uint64_t earlier = transfers.begin_download(first.data(), first.size());
    EXPECT_FALSE(in_order(earlier)) << "the memory is free";
    EXPECT_FALSE(in_order(transfers.begin_download(first.data() + first.size(), 50))) << "other memory";
    const std::uint64_t small = transfers.begin_download(first.data() + 10, 1);
    EXPECT_TRUE(in_order(small));
    EXPECT_EQ(transfers.place(small, 0, 1).data(), memory.data() + 10);
    transfers.landed(small, 1);
    EXPECT_TRUE(in_order(transfers.begin_download(memory.data(), memory.size()))) << "partly the same memory";
    EXPECT_FALSE(transfers.place(earlier, 0, first.size()).empty());
    transfers.landed(earlier, first.size());
    EXPECT_TRUE(transfers.cancel(small));
}

TEST(Downloads, SmallOnesAlwaysStayInOrder) {
    Transfers transfers;
    std::vector<std::byte> memory(100);
    EXPECT_FALSE(in_order(transfers.begin_download(memory.data(), memory.size())));
    EXPECT_FALSE(in_order(transfers.begin_download(memory.data(), memory.size())));
}

// ---- sent ahead

class AheadOverLanes : public ::testing::Test {
  protected:
    static constexpr std::size_t kMiB = 1u << 20;
    // The transfers' thread lives as long as the process.
    testing::LanePair& lanes_ = *new testing::LanePair(2, [] { return transport::inproc::make_pair(1u << 20); });
    Client& client_ = Client::fresh(&lanes_.client);
    Transfers& transfers_ = client_.transfers;
};

TEST_F(AheadOverLanes, DataIsSentWithoutAPull) {
    const auto data = pattern(2 * kMiB + 100, 5);
    const Transfers::Ahead ahead = transfers_.begin_upload_ahead(data);
    EXPECT_EQ(ahead.bytes, data.size());
    EXPECT_NE(ahead.transfer & codec::kTransferSentAhead, 0u);
    lanes_.server_side.expect_transfer(ahead.transfer, data.size());
    transfers_.send_ahead(ahead);
    EXPECT_TRUE(transfers_.wait_sent(ahead.transfer));
    ASSERT_TRUE(lanes_.server_side.wait_pieces(3));
    EXPECT_EQ(lanes_.server_side.data(ahead.transfer), data);
}

TEST_F(AheadOverLanes, AmountIsLimitedByTheWorkersRoom) {
    const auto data = pattern(20 * kMiB + 7, 5);
    const Transfers::Ahead first = transfers_.begin_upload_ahead(data), second = transfers_.begin_upload_ahead(data),
                           third = transfers_.begin_upload_ahead(data);
    EXPECT_EQ(first.bytes, data.size());
    EXPECT_EQ(second.bytes, 11 * kMiB) << "whole pieces";
    EXPECT_EQ(third.bytes, 0u);
    EXPECT_EQ(third.transfer & codec::kTransferSentAhead, 0u);
    EXPECT_TRUE(transfers_.ahead_taken(first.transfer));
    EXPECT_TRUE(transfers_.ahead_taken(first.transfer)) << "a repetition changes nothing";
    EXPECT_EQ(transfers_.begin_upload_ahead(data).bytes, data.size());
    EXPECT_EQ(transfers_.begin_upload_ahead(data).bytes, 0u);
    // A failed copy makes room as well.
    EXPECT_TRUE(transfers_.cancel(second.transfer));
    EXPECT_EQ(transfers_.begin_upload_ahead(data).bytes, 11 * kMiB);
    EXPECT_FALSE(transfers_.ahead_taken(codec::kTransferSentAhead | 1000)) << "an unknown transfer";
}

TEST_F(AheadOverLanes, RestIsSentWhenPulled) {
    const auto data = pattern(34 * kMiB, 5);
    const Transfers::Ahead ahead = transfers_.begin_upload_ahead(data);
    ASSERT_EQ(ahead.bytes, codec::kMaxAheadBytes);
    lanes_.server_side.expect_transfer(ahead.transfer, data.size());
    transfers_.send_ahead(ahead);
    ASSERT_TRUE(lanes_.server_side.wait_pieces(32));
    EXPECT_TRUE(transfers_.pull(ahead.transfer, 32 * kMiB, kMiB));
    EXPECT_TRUE(transfers_.pull(ahead.transfer, 33 * kMiB, kMiB));
    EXPECT_TRUE(transfers_.wait_sent(ahead.transfer));
    ASSERT_TRUE(lanes_.server_side.wait_pieces(34));
    EXPECT_EQ(lanes_.server_side.data(ahead.transfer), data);
}

TEST(Uploads, AreSentAheadOnlyOverLanes) {
    const auto data = pattern(100'000, 5);
    EXPECT_EQ(Client::fresh().transfers.begin_upload_ahead(data).bytes, 0u);
}

// Memory that the application is about to unmap or reuse.
TEST(Memory, WaitUntouchedWaitsForItsTransfers) {
    Client& client = Client::fresh();
    Transfers& transfers = client.transfers;
    std::vector<std::byte> memory(3000);
    const std::uint64_t download = transfers.begin_download(memory.data(), 1000);
    const std::uint64_t upload = transfers.begin_upload(std::span(memory).subspan(1000, 1000));
    transfers.wait_untouched(memory.data() + 2000, 1000);
    std::atomic<int> waiting{2};
    std::thread behind_download([&] {
        transfers.wait_untouched(memory.data() + 999, 1);
        --waiting;
    });
    std::thread behind_upload([&] {
        transfers.wait_untouched(memory.data() + 1999, 100);
        --waiting;
    });
    ASSERT_TRUE(client.wait_for_waiters(2));
    EXPECT_EQ(waiting, 2);
    transfers.landed(download, 1000);
    behind_download.join();
    ASSERT_TRUE(client.wait_for_waiters(1));
    EXPECT_EQ(waiting, 1);
    EXPECT_TRUE(transfers.pull(upload, 0, 1000));
    behind_upload.join();
    EXPECT_EQ(waiting, 0);
}

TEST(Downloads, AreScatteredByParts) {
    Transfers transfers;
    std::vector<std::byte> seen(12), expected(12);
    const std::uint64_t transfer =
        transfers.begin_download(12, 0x1000, 0x2000, [&](std::uint64_t offset, std::span<const std::byte> part) {
            std::copy(part.begin(), part.end(), seen.begin() + static_cast<std::ptrdiff_t>(offset));
        });
    EXPECT_TRUE(transfers.writes_into(reinterpret_cast<void*>(0x1800), 4));
    const auto data = pattern(12, 3);
    const std::span<std::byte> middle = transfers.begin_part(transfer, 4, 4);
    std::memcpy(transfers.place(transfer, 0, 4).data(), data.data(), 4);
    transfers.landed(transfer, 4);
    std::copy_n(data.begin(), 4, expected.begin());
    EXPECT_EQ(seen, expected) << "a part that is still being received must not appear";
    std::memcpy(middle.data(), data.data() + 4, 4);
    transfers.end_part(transfer, 4, 4, true);
    transfers.place(transfer, 8, 4);
    transfers.lost();  // the piece is sent again on another connection
    std::memcpy(transfers.place(transfer, 8, 4).data(), data.data() + 8, 4);
    EXPECT_TRUE(transfers.writes_into(reinterpret_cast<void*>(0x1800), 4));
    transfers.landed(transfer, 4);
    EXPECT_EQ(seen, data);
    EXPECT_FALSE(transfers.writes_into(reinterpret_cast<void*>(0x1800), 4));
}

TEST(Downloads, ScatteredPartIsReceivedByOneConnection) {
    Transfers transfers;
    const std::uint64_t transfer =
        transfers.begin_download(8, 0x1000, 0x2000, [](std::uint64_t, std::span<const std::byte>) {});
    EXPECT_FALSE(transfers.place(transfer, 0, 4).empty());
    EXPECT_TRUE(transfers.begin_part(transfer, 0, 4).empty());
    EXPECT_TRUE(transfers.begin_part(transfer, 0, 8).empty());
    EXPECT_FALSE(transfers.begin_part(transfer, 4, 4).empty());
}

TEST(Downloads, CancelledDownloadAcceptsNoData) {
    Transfers transfers;
    std::byte memory[4];
    const std::uint64_t transfer = transfers.begin_download(memory, 4);
    transfers.cancel(transfer);
    EXPECT_TRUE(transfers.place(transfer, 0, 4).empty());
    EXPECT_FALSE(transfers.writes_into(memory, 4));
    transfers.landed(transfer, 4);  // has no effect
}

TEST(Downloads, PartsMayArriveInAnyOrderAndConcurrently) {
    Transfers transfers;
    std::vector<std::byte> memory(100);
    const std::uint64_t transfer = transfers.begin_download(memory.data(), memory.size());
    EXPECT_EQ(transfers.begin_part(transfer, 60, 40).data(), memory.data() + 60);
    EXPECT_EQ(transfers.begin_part(transfer, 0, 30).data(), memory.data());
    EXPECT_TRUE(transfers.begin_part(transfer, 60, 41).empty());
    EXPECT_TRUE(transfers.begin_part(transfer + 1, 0, 1).empty());
    transfers.end_part(transfer, 0, 30, true);
    EXPECT_EQ(transfers.place(transfer, 30, 30).data(), memory.data() + 30)
        << "the rest may arrive on another connection";
    transfers.landed(transfer, 30);
    EXPECT_TRUE(transfers.writes_into(memory.data(), 1));
    transfers.end_part(transfer, 60, 40, true);
    EXPECT_FALSE(transfers.writes_into(memory.data(), 100));
}

// A faulty server: all bytes have been received, but one lane is still writing.
TEST(Downloads, EndWhenNoConnectionWritesThem) {
    Transfers transfers;
    std::byte memory[8];
    const std::uint64_t transfer = transfers.begin_download(memory, 8);
    EXPECT_FALSE(transfers.begin_part(transfer, 0, 8).empty());
    EXPECT_FALSE(transfers.begin_part(transfer, 0, 4).empty());
    transfers.end_part(transfer, 0, 8, true);
    EXPECT_TRUE(transfers.writes_into(memory, 8));
    transfers.end_part(transfer, 0, 4, false);
    EXPECT_FALSE(transfers.writes_into(memory, 8));
}

// The same with the session's own connection, which is in the middle of a part that a lane has delivered as well.
TEST(Downloads, DoNotEndWhileTheSessionsConnectionWritesThem) {
    Transfers transfers;
    std::byte memory[8];
    const std::uint64_t transfer = transfers.begin_download(memory, 8);
    ASSERT_EQ(transfers.place(transfer, 0, 8).size(), 8u);
    ASSERT_FALSE(transfers.begin_part(transfer, 0, 8).empty());
    transfers.end_part(transfer, 0, 8, true);
    EXPECT_TRUE(transfers.writes_into(memory, 1));
    transfers.landed(transfer, 8);
    EXPECT_FALSE(transfers.writes_into(memory, 1));
}

TEST(Downloads, CancelWaitsForAConnectionThatWrites) {
    for (const bool lane : {true, false}) {
        ManualClock clock;
        Transfers transfers(clock);
        std::byte memory[8];
        const std::uint64_t transfer = transfers.begin_download(memory, 8);
        EXPECT_FALSE((lane ? transfers.begin_part(transfer, 0, 8) : transfers.place(transfer, 0, 8)).empty());
        std::atomic<bool> back{false};
        std::thread caller([&] {
            transfers.cancel(transfer);
            back = true;
        });
        ASSERT_TRUE(clock.wait_for_waiters(1));
        EXPECT_FALSE(back);
        EXPECT_TRUE(transfers.begin_part(transfer, 0, 8).empty()) << "no more data is accepted";
        if (lane) {
            transfers.end_part(transfer, 0, 8, false);
        } else {
            transfers.lost();
        }
        caller.join();
        EXPECT_FALSE(transfers.writes_into(memory, 8));
    }
}

TEST(Downloads, EndWaitsForAConnectionThatWrites) {
    ManualClock clock;
    Transfers transfers(clock);
    std::byte memory[8];
    const std::uint64_t download = transfers.begin_download(memory, 8);
    const std::uint64_t upload = transfers.begin_upload(std::span<const std::byte>(memory));
    EXPECT_FALSE(transfers.begin_part(download, 0, 8).empty());
    std::atomic<bool> back{false};
    std::thread waits([&] {
        EXPECT_FALSE(transfers.wait_sent(upload));
        back = true;
    });
    std::thread ends([&] { transfers.end(); });
    ASSERT_TRUE(clock.wait_for_waiters(2));
    EXPECT_FALSE(back);
    transfers.end_part(download, 0, 8, false);
    ends.join();
    waits.join();
}

TEST(Downloads, EndGivesUpOnAConnectionThatStays) {
    ManualClock clock;
    Transfers transfers(clock);
    std::byte memory[8];
    const std::uint64_t download = transfers.begin_download(memory, 8);
    EXPECT_FALSE(transfers.begin_part(download, 0, 8).empty());
    std::thread ends([&] { transfers.end(); });
    ASSERT_TRUE(clock.wait_for_wait_until(1s));
    clock.advance(1s);
    ends.join();
}

TEST(Uploads, AreSentWhenPulled) {
    Client& client = Client::fresh();
    const auto data = pattern(100'000, 1);
    const std::uint64_t transfer = client.transfers.begin_upload(std::span(data));
    EXPECT_EQ(client.worker.landed(transfer), 0u);
    client.transfers.pull(transfer, 0, 60'000);
    client.transfers.pull(transfer, 60'000, 40'000);
    EXPECT_TRUE(client.transfers.wait_sent(transfer));
    EXPECT_EQ(client.worker.wait_for(transfer, data.size()), data);
}

TEST(Uploads, CopiedDataNeedsNoWait) {
    Client& client = Client::fresh();
    const auto data = pattern(5000, 2);
    const std::uint64_t transfer = client.transfers.begin_upload(std::vector<std::byte>(data));
    client.transfers.pull(transfer, 0, data.size());
    EXPECT_EQ(client.worker.wait_for(transfer, data.size()), data);
}

TEST(Uploads, WaitForADownloadIntoTheSameMemory) {
    Client& client = Client::fresh();
    std::vector<std::byte> memory(4096), other(64);
    const std::uint64_t download = client.transfers.begin_download(memory.data(), memory.size());
    const std::uint64_t upload = client.transfers.begin_upload(std::span(memory).subspan(1000, 100));
    const std::uint64_t unrelated = client.transfers.begin_upload(std::span(other));
    client.transfers.pull(upload, 0, 100);
    client.transfers.pull(unrelated, 0, other.size());
    EXPECT_EQ(client.worker.wait_for(unrelated, other.size()).size(), other.size())
        << "a waiting upload must not block the others";
    EXPECT_EQ(client.worker.landed(upload), 0u);
    const auto data = pattern(memory.size(), 9);
    std::memcpy(client.transfers.place(download, 0, memory.size()).data(), data.data(), data.size());
    client.transfers.landed(download, memory.size());
    const auto arrived = client.worker.wait_for(upload, 100);
    ASSERT_EQ(arrived.size(), 100u);
    EXPECT_EQ(std::memcmp(arrived.data(), data.data() + 1000, 100), 0)
        << "the downloaded data, not the earlier content";
}

TEST(Uploads, DoNotWaitForALaterDownload) {
    Client& client = Client::fresh();
    std::vector<std::byte> memory(64);
    const std::uint64_t upload = client.transfers.begin_upload(std::span(memory));
    client.transfers.begin_download(memory.data(), memory.size());
    client.transfers.pull(upload, 0, memory.size());
    EXPECT_TRUE(client.transfers.wait_sent(upload));
}

// A program copies rows faster than they can be sent.
TEST(Uploads, CopiedDataIsBounded) {
    Client& client = Client::fresh();
    constexpr std::size_t kHalf = Transfers::kMaxCopiedBytes / 2;
    const std::uint64_t first = client.transfers.begin_upload(std::vector<std::byte>(kHalf));
    const std::uint64_t second = client.transfers.begin_upload(std::vector<std::byte>(kHalf));
    std::atomic<std::uint64_t> third{0};
    std::thread beginning([&] { third = client.transfers.begin_upload(std::vector<std::byte>(1)); });
    ASSERT_TRUE(client.wait_for_waiters(1));
    EXPECT_EQ(third, 0u) << "it must still wait";
    client.transfers.cancel(first);
    beginning.join();
    EXPECT_NE(third, 0u);
    client.transfers.cancel(second);
    client.transfers.cancel(third);
    const std::uint64_t alone = client.transfers.begin_upload(std::vector<std::byte>(4 * kHalf));
    client.transfers.cancel(alone);
}

// Rows are packed part by part, as they are pulled. A server that pulls too much at once is refused, since the client
// would have to allocate that much.
TEST(Uploads, RowsArePackedWhenPulled) {
    Client& client = Client::fresh();
    constexpr std::size_t kBytes = 2 * wire::Lanes::kMaxPieceBytes;
    const auto data = pattern(kBytes, 4);
    std::atomic<std::size_t> packed{0};
    const std::uint64_t upload =
        client.transfers.begin_upload(kBytes, 0x1000, 0x2000, [&](std::uint64_t offset, std::span<std::byte> part) {
            std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(offset), part.size(), part.begin());
            packed += part.size();
        });
    EXPECT_FALSE(client.transfers.pull(upload, 0, kBytes));
    std::atomic<bool> freed{false};
    std::thread freeing([&] {
        client.transfers.wait_untouched(reinterpret_cast<void*>(0x1fff), 1);
        freed = true;
    });
    ASSERT_TRUE(client.wait_for_waiters(1));
    EXPECT_EQ(packed, 0u);
    EXPECT_FALSE(freed) << "it has not been read yet";
    EXPECT_TRUE(client.transfers.pull(upload, 0, kBytes / 2));
    EXPECT_TRUE(client.transfers.pull(upload, kBytes / 2, kBytes / 2));
    EXPECT_EQ(client.worker.wait_for(upload, kBytes), data);
    freeing.join();
    EXPECT_TRUE(freed);
    EXPECT_EQ(packed, kBytes);
}

TEST(Uploads, PullsOutsideOfTheTransferAreRefused) {
    Client& client = Client::fresh();
    const auto data = pattern(32, 5);
    const std::uint64_t upload = client.transfers.begin_upload(std::span(data));
    EXPECT_FALSE(client.transfers.pull(upload, 33, 1));
    EXPECT_FALSE(client.transfers.pull(upload, 1, 32));
    EXPECT_FALSE(client.transfers.pull(upload, ~std::uint64_t{0}, 2));
    EXPECT_FALSE(client.transfers.pull(upload + 100, 0, 1));
    EXPECT_TRUE(client.transfers.pull(upload, 0, 32));  // answered after the others
    EXPECT_EQ(client.worker.wait_for(upload, 32), data);
    EXPECT_EQ(client.worker.landed(upload), 32u);
}

// The worker's end of the lanes; keeps the received pieces.
class LaneEnd final : public wire::LaneReceiver {
  public:
    explicit LaneEnd(std::size_t bytes) : data(bytes) {}
    std::vector<std::byte> data;
    std::atomic<std::size_t> pieces{0};

  private:
    std::span<std::byte> piece_destination(std::uint64_t, std::uint64_t offset, std::size_t bytes) override {
        return std::span(data).subspan(offset, bytes);
    }
    void on_piece(std::uint64_t, std::uint64_t, std::size_t) override { ++pieces; }
    void on_piece_lost(std::uint64_t, std::uint64_t, std::size_t) override {}
    void on_lanes_ended(const Error&) override {}
};

TEST(Uploads, LargeUploadsUseLanes) {
    constexpr std::size_t kPiece = wire::Lanes::kLeastPieceBytes, kBytes = 2 * kPiece + 100;
    IgnoringReceiver ignored;
    LaneEnd unused(0), end(kBytes);
    wire::Lanes lanes(unused, {}), worker_lanes(end, {});
    auto [here, there] = transport::inproc::make_pair(1u << 20);
    ASSERT_TRUE(lanes.add(0, std::move(here)).ok());
    ASSERT_TRUE(worker_lanes.add(0, std::move(there)).ok());
    Client& client = Client::fresh();
    static auto& transfers = *new Transfers;  // its thread lives as long as the process
    std::atomic<std::size_t> told{0};
    transfers.start(*client.channel, &lanes, [&](std::size_t bytes) { told = bytes; });
    const auto data = pattern(kBytes, 9);
    const std::uint64_t transfer = transfers.begin_upload(std::span(data));
    EXPECT_EQ(told, kBytes);
    transfers.pull(transfer, kPiece, kPiece);
    transfers.pull(transfer, 0, kPiece);
    transfers.pull(transfer, 2 * kPiece, 100);
    EXPECT_TRUE(transfers.wait_sent(transfer));
    ASSERT_TRUE(worker_lanes.wait_landed(2));
    EXPECT_EQ(end.pieces, 2u);
    EXPECT_TRUE(std::equal(data.begin(), data.end() - 100, end.data.begin()));
    const auto rest = client.worker.wait_for(transfer, 100);
    EXPECT_EQ(client.worker.landed(transfer), 100u) << "small data uses the session's own connection";
    EXPECT_TRUE(std::equal(data.end() - 100, data.end(), rest.end() - 100));
    transfers.end();
}

// A worker that receives nothing, so everything sent stays in the channel.
struct StuckClient {
    IgnoringReceiver ignored;
    std::unique_ptr<transport::Connection> there;
    std::unique_ptr<wire::Channel> channel;
    Transfers transfers;

    StuckClient() {
        auto [here, peer] = transport::inproc::make_pair(4096);
        there = std::move(peer);
        channel = std::make_unique<wire::Channel>(std::move(here), ignored);
        channel->start();
        transfers.start(*channel);
    }
};

// One server pulls a part twice, so that all bytes count as sent; another reports the transfer as failed. In both cases
// the channel still reads the data. AddressSanitizer checks that the memory is still valid.
TEST(Uploads, KeepTheirMemoryWhileTheChannelReadsIt) {
    auto& client = *new StuckClient;
    const auto data = pattern(100'000, 7);
    const std::uint64_t transfer = client.transfers.begin_upload(std::span(data));
    client.transfers.pull(transfer, 0, 100'000);
    ASSERT_TRUE(wait_until_others_sleep()) << "the pull is answered, and the connection is full";
    client.transfers.cancel(transfer);
    std::atomic<bool> let_go{false};
    ObservedThread waiter([&] { let_go = client.transfers.wait_sent(transfer); });
    EXPECT_TRUE(waiter.blocks());
    EXPECT_FALSE(let_go) << "the channel may still send it";
    client.channel->close(0ms);
    waiter.join();
    EXPECT_TRUE(let_go);
}

TEST(Uploads, GraphsUploadsMayNotBeRestartedWhileInProgress) {
    auto& client = *new StuckClient;
    constexpr std::uint64_t kTransfer = codec::kTransferOfWorker | 1;
    EXPECT_TRUE(client.transfers.takes_named(kTransfer, 100'000));
    client.transfers.send_unasked(kTransfer, {}, pattern(100'000, 8), 10'000);
    EXPECT_FALSE(client.transfers.takes_named(kTransfer, 100'000));
    for (int i = 0; i < 1000; ++i) {
        client.transfers.pull(kTransfer, 0, 10'000);
    }
    ASSERT_TRUE(wait_until_others_sleep()) << "all pulls are answered, and the connection is full";
    client.transfers.cancel(kTransfer);
    ASSERT_TRUE(wait_until_others_sleep());
    EXPECT_FALSE(client.transfers.takes_named(kTransfer, 100'000)) << "the channel still has pieces of it";
    client.channel->close(0ms);
    ASSERT_TRUE(wait_until_others_sleep());
    EXPECT_TRUE(client.transfers.takes_named(kTransfer, codec::kMaxGraphCopyBytes)) << "all of its pieces are gone";
}

TEST(Uploads, EndWithTheSession) {
    Client& client = Client::fresh();
    const auto data = pattern(32, 6);
    const std::uint64_t upload = client.transfers.begin_upload(std::span(data));
    std::thread ender([&] {
        EXPECT_TRUE(client.wait_for_waiters(1));
        client.transfers.end();
    });
    EXPECT_FALSE(client.transfers.wait_sent(upload));
    ender.join();
}

}  // namespace
}  // namespace gpupool::test
