// A hostile server's notices about graphs: it gets what was named, once at a time, and nothing grows without end.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "client/core/session.h"
#include "protocol/transport/inproc/connection.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using client::GraphHosts;
using client::HostFunctions;
using client::Session;
using client::Transfers;
using codec::GraphCopyNotice;
using codec::GraphFunctionNotice;
using codec::kTransferOfWorker;
using codec::NoticeType;

// A session is never destroyed: its threads live as long as the process. Nothing answers at its other end.
struct Fixture {
    std::unique_ptr<transport::Connection> peer;
    std::unique_ptr<Session> session;

    Fixture() {
        auto [here, there] = transport::inproc::make_pair(1u << 20);
        peer = std::move(there);
        session = Session::adopt(std::move(here), {});
        session->host_functions.start([](std::uint64_t) {}, [] {});
    }
    static Fixture& fresh() {
        static auto& all = *new std::vector<std::unique_ptr<Fixture>>;
        return *all.emplace_back(std::make_unique<Fixture>());
    }
    template <class Notice>
    void notice(NoticeType type, const Notice& notice) {
        codec::ReplyHeader header{};
        header.bytes = sizeof header + sizeof notice;
        header.opcode = static_cast<std::uint16_t>(type);
        header.kind = codec::ReplyKind::notice;
        auto payload = std::make_unique<std::byte[]>(header.bytes);
        std::memcpy(payload.get(), &header, sizeof header);
        std::memcpy(payload.get() + sizeof header, &notice, sizeof notice);
        static_cast<wire::Receiver&>(*session).on_frame(wire::FrameType::replies, std::move(payload), header.bytes);
    }
};

GraphCopyNotice one_row(std::uint64_t transfer, std::uint64_t memory, std::uint64_t bytes) {
    return {kTransferOfWorker | transfer, memory, 0, 0, 0, bytes, 1, bytes, 1, 1};
}

TEST(GraphNotices, MemoryThatIsWrittenIsWrittenUnderItsNameOnly) {
    Fixture& f = Fixture::fresh();
    std::array<std::byte, 64> read{}, written{};
    auto& hosts = f.session->graph_hosts;
    const auto to_read = hosts.name_memory({read.data(), 64, GraphHosts::Use::read});
    const auto to_write = hosts.name_memory({written.data(), 64, GraphHosts::Use::write});
    const auto place = [&](std::uint64_t transfer) {
        return f.session->transfers.place(kTransferOfWorker | transfer, 0, 1).data();
    };
    f.notice(NoticeType::graph_download, one_row(1, to_write, 64));
    EXPECT_EQ(place(1), written.data());
    EXPECT_FALSE(f.session->lost());
    auto of_client = one_row(0, to_write, 64);
    of_client.transfer = 6;
    const std::pair<GraphCopyNotice, const char*> refused[] = {{one_row(2, to_read, 64), "it was offered to be read"},
                                                               {one_row(3, 99, 64), "nothing has that name"},
                                                               {one_row(4, 0, 64), "nor this"},
                                                               {one_row(5, to_write, 65), "it is not so long"},
                                                               {of_client, "a name that is the client's to give"}};
    for (const auto& [notice, why] : refused) {
        Fixture& other = Fixture::fresh();
        other.session->graph_hosts.name_memory({read.data(), 64, GraphHosts::Use::read});
        other.session->graph_hosts.name_memory({written.data(), 64, GraphHosts::Use::write});
        other.notice(NoticeType::graph_download, notice);
        EXPECT_TRUE(other.session->transfers.place(notice.transfer, 0, 1).empty()) << why;
        EXPECT_TRUE(other.session->lost()) << why;
    }
}

TEST(GraphNotices, ATransferUnderWayIsNotBegunAgain) {
    Fixture& f = Fixture::fresh();
    std::array<std::byte, 64> memory{};
    auto& hosts = f.session->graph_hosts;
    const auto whole = hosts.name_memory({memory.data(), 64, GraphHosts::Use::write});
    const auto half = hosts.name_memory({memory.data() + 32, 32, GraphHosts::Use::write});
    auto& transfers = f.session->transfers;
    f.notice(NoticeType::graph_download, one_row(1, whole, 64));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 64).data(), memory.data());
    transfers.landed(kTransferOfWorker | 1, 64);
    f.notice(NoticeType::graph_download, one_row(1, half, 32));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 32).data(), memory.data() + 32) << "the first is over";
    f.notice(NoticeType::graph_download, one_row(1, whole, 64));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 32).data(), memory.data() + 32) << "the second is not";
    EXPECT_TRUE(f.session->lost());
}

TEST(GraphNotices, TransfersAreBoundedInBytes) {
    Fixture& f = Fixture::fresh();
    auto& transfers = f.session->transfers;
    constexpr std::uint64_t kHalf = codec::kMaxGraphCopyBytes / 2;
    std::byte* const place = reinterpret_cast<std::byte*>(0x10000);  // never touched here
    EXPECT_FALSE(transfers.takes_named(kTransferOfWorker | 1, codec::kMaxGraphCopyBytes + 1));
    EXPECT_FALSE(transfers.takes_named(kTransferOfWorker | 1, ~0ull));
    transfers.begin_named_download(kTransferOfWorker | 1, kHalf, place, {});
    transfers.begin_named_download(kTransferOfWorker | 2, kHalf, place, {});
    EXPECT_FALSE(transfers.takes_named(kTransferOfWorker | 3, 1));
    transfers.landed(kTransferOfWorker | 1, kHalf);
    EXPECT_TRUE(transfers.takes_named(kTransferOfWorker | 3, 1));
    EXPECT_FALSE(transfers.takes_named(kTransferOfWorker | 3, kHalf + 1));
    transfers.cancel(kTransferOfWorker | 2);
    EXPECT_TRUE(transfers.takes_named(kTransferOfWorker | 3, codec::kMaxGraphCopyBytes));
}

TEST(GraphNotices, TransfersAreBoundedInNumber) {
    Fixture& f = Fixture::fresh();
    std::array<std::byte, 8> memory{};
    const auto name = f.session->graph_hosts.name_memory({memory.data(), 8, GraphHosts::Use::write});
    for (std::uint64_t i = 0; i < Transfers::kMaxNamedTransfers; ++i) {
        f.notice(NoticeType::graph_download, one_row(i, name, 8));
    }
    EXPECT_FALSE(f.session->transfers.place(kTransferOfWorker | (Transfers::kMaxNamedTransfers - 1), 0, 8).empty());
    f.notice(NoticeType::graph_download, one_row(Transfers::kMaxNamedTransfers, name, 8));
    EXPECT_TRUE(f.session->transfers.place(kTransferOfWorker | Transfers::kMaxNamedTransfers, 0, 8).empty());
}

TEST(GraphNotices, FunctionsRunByTheirNameAndTheirTicketsOnce) {
    Fixture& f = Fixture::fresh();
    struct Counter {
        std::atomic<int> runs{0};
        std::atomic<bool> go{false};
    };
    auto& counter = *new Counter;
    const auto name = f.session->graph_hosts.name_function({[](void* given) {
                                                                auto& c = *static_cast<Counter*>(given);
                                                                while (!c.go) {
                                                                    std::this_thread::yield();
                                                                }
                                                                ++c.runs;
                                                            },
                                                            &counter});
    HostFunctions& functions = f.session->host_functions;
    f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 1, name});
    f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name});
    counter.go = true;
    while (functions.pending(kTransferOfWorker | 1) || functions.pending(kTransferOfWorker | 2)) {
        std::this_thread::yield();
    }
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(counter.runs, 2);
    // Over, so the name of the turn may come again.
    f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name});
    while (functions.pending(kTransferOfWorker | 2)) {
        std::this_thread::yield();
    }
    EXPECT_EQ(counter.runs, 3);
    EXPECT_FALSE(f.session->lost());
}

TEST(GraphNotices, WhatNoGraphHasEndsTheSession) {
    static std::atomic<bool> go{false};
    static std::atomic<int> runs{0};
    const auto wait = [](void*) {
        while (!go) {
            std::this_thread::yield();
        }
        ++runs;
    };
    const auto names = [&](Fixture& f) { return f.session->graph_hosts.name_function({wait, nullptr}); };
    const auto expect_lost = [&](auto say) {
        Fixture& f = Fixture::fresh();
        const std::uint64_t name = names(f);
        f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 1, name});
        f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name});
        EXPECT_FALSE(f.session->lost());
        say(f, name);
        EXPECT_TRUE(f.session->lost());
    };
    expect_lost([](Fixture& f, std::uint64_t name) {
        f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name});  // again
    });
    expect_lost([](Fixture& f, std::uint64_t name) {
        f.notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 3, name + 1});
    });
    expect_lost([](Fixture& f, std::uint64_t name) {
        f.notice(NoticeType::graph_function, GraphFunctionNotice{4, name});  // a ticket that is the client's to give
    });
    expect_lost([](Fixture& f, std::uint64_t) {
        f.notice(NoticeType::host_function, codec::HostFunctionNotice{kTransferOfWorker | 2, 0, 0});
    });
    go = true;
    std::this_thread::sleep_for(50ms);
    EXPECT_LE(runs, 4) << "the one that each session had begun";
}

}  // namespace
}  // namespace gpupool::test
