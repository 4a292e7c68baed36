// A hostile server's notices about graphs: it can use only what was named, once at a time, and every queue is bounded.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/waiting.h"
#include "tests/unit/client/server.h"

namespace gpupool::test {
namespace {

using client::GraphHosts;
using client::HostFunctions;
using client::Transfers;
using codec::GraphCopyNotice;
using codec::GraphFunctionNotice;
using codec::kTransferOfWorker;
using codec::NoticeType;

// A server whose session runs host functions.
Server& fresh_server() {
    Server& server = Server::fresh();
    server.session->host_functions.start([](std::uint64_t) {});
    return server;
}

GraphCopyNotice one_row(std::uint64_t transfer, std::uint64_t memory, std::uint64_t bytes) {
    return {kTransferOfWorker | transfer, memory, 0, 0, 0, bytes, 1, bytes, 1, 1};
}

TEST(GraphNotices, MemoryIsWrittenOnlyUnderItsName) {
    Server& f = fresh_server();
    std::array<std::byte, 64> read{}, written{};
    auto& hosts = f.session->graph_hosts;
    const auto to_read = hosts.name_memory({read.data(), 64, GraphHosts::Use::read});
    const auto to_write = hosts.name_memory({written.data(), 64, GraphHosts::Use::write});
    const auto place = [&](std::uint64_t transfer) {
        return f.session->transfers.place(kTransferOfWorker | transfer, 0, 1).data();
    };
    f.send(notice(NoticeType::graph_download, one_row(1, to_write, 64)));
    EXPECT_EQ(place(1), written.data());
    EXPECT_FALSE(f.session->lost());
    auto of_client = one_row(0, to_write, 64);
    of_client.transfer = 6;
    const std::pair<GraphCopyNotice, const char*> refused[] = {{one_row(2, to_read, 64), "it was offered to be read"},
                                                               {one_row(3, 99, 64), "nothing has that name"},
                                                               {one_row(4, 0, 64), "nor this"},
                                                               {one_row(5, to_write, 65), "it is not so long"},
                                                               {of_client, "a name that is the client's to give"}};
    for (const auto& [refusal, why] : refused) {
        Server& other = fresh_server();
        other.session->graph_hosts.name_memory({read.data(), 64, GraphHosts::Use::read});
        other.session->graph_hosts.name_memory({written.data(), 64, GraphHosts::Use::write});
        other.send(notice(NoticeType::graph_download, refusal));
        EXPECT_TRUE(other.session->transfers.place(refusal.transfer, 0, 1).empty()) << why;
        EXPECT_TRUE(other.session->lost()) << why;
    }
}

TEST(GraphNotices, TransferInProgressIsNotRestarted) {
    Server& f = fresh_server();
    std::array<std::byte, 64> memory{};
    auto& hosts = f.session->graph_hosts;
    const auto whole = hosts.name_memory({memory.data(), 64, GraphHosts::Use::write});
    const auto half = hosts.name_memory({memory.data() + 32, 32, GraphHosts::Use::write});
    auto& transfers = f.session->transfers;
    f.send(notice(NoticeType::graph_download, one_row(1, whole, 64)));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 64).data(), memory.data());
    transfers.landed(kTransferOfWorker | 1, 64);
    f.send(notice(NoticeType::graph_download, one_row(1, half, 32)));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 32).data(), memory.data() + 32)
        << "the first transfer is complete";
    f.send(notice(NoticeType::graph_download, one_row(1, whole, 64)));
    EXPECT_EQ(transfers.place(kTransferOfWorker | 1, 0, 32).data(), memory.data() + 32)
        << "the second transfer is not complete";
    EXPECT_TRUE(f.session->lost());
}

TEST(GraphNotices, TransfersAreBoundedInBytes) {
    Server& f = fresh_server();
    auto& transfers = f.session->transfers;
    constexpr std::uint64_t kHalf = codec::kMaxGraphCopyBytes / 2;
    std::byte* const place = reinterpret_cast<std::byte*>(0x10000);  // never accessed in this test
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
    Server& f = fresh_server();
    std::array<std::byte, 8> memory{};
    const auto name = f.session->graph_hosts.name_memory({memory.data(), 8, GraphHosts::Use::write});
    for (std::uint64_t i = 0; i < Transfers::kMaxNamedTransfers; ++i) {
        f.send(notice(NoticeType::graph_download, one_row(i, name, 8)));
    }
    EXPECT_FALSE(f.session->transfers.place(kTransferOfWorker | (Transfers::kMaxNamedTransfers - 1), 0, 8).empty());
    f.send(notice(NoticeType::graph_download, one_row(Transfers::kMaxNamedTransfers, name, 8)));
    EXPECT_TRUE(f.session->transfers.place(kTransferOfWorker | Transfers::kMaxNamedTransfers, 0, 8).empty());
}

TEST(GraphNotices, FunctionsRunByNameAndOncePerTicket) {
    Server& f = fresh_server();
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
    f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 1, name}));
    f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name}));
    counter.go = true;
    while (functions.any_pending()) {
        std::this_thread::yield();
    }
    EXPECT_EQ(counter.runs, 2);
    // The function has returned, so the ticket may be used again. It runs after everything that was due before.
    f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name}));
    while (functions.any_pending()) {
        std::this_thread::yield();
    }
    EXPECT_EQ(counter.runs, 3);
    EXPECT_FALSE(f.session->lost());
}

TEST(GraphNotices, InvalidNamesAndTicketsEndTheSession) {
    static std::atomic<bool> go{false};
    static std::atomic<int> runs{0};
    go = false;
    runs = 0;
    const auto wait = [](void*) {
        while (!go) {
            std::this_thread::yield();
        }
        ++runs;
    };
    const auto names = [&](Server& f) { return f.session->graph_hosts.name_function({wait, nullptr}); };
    const auto expect_lost = [&](auto say) {
        Server& f = fresh_server();
        const std::uint64_t name = names(f);
        f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 1, name}));
        f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name}));
        EXPECT_FALSE(f.session->lost());
        say(f, name);
        EXPECT_TRUE(f.session->lost());
    };
    expect_lost([](Server& f, std::uint64_t name) {
        // the ticket is still in use
        f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 2, name}));
    });
    expect_lost([](Server& f, std::uint64_t name) {
        f.send(notice(NoticeType::graph_function, GraphFunctionNotice{kTransferOfWorker | 3, name + 1}));
    });
    expect_lost([](Server& f, std::uint64_t name) {
        f.send(notice(NoticeType::graph_function, GraphFunctionNotice{4, name}));  // a ticket from the client's range
    });
    expect_lost([](Server& f, std::uint64_t) {
        f.send(notice(NoticeType::host_function, codec::HostFunctionNotice{kTransferOfWorker | 2, 0, 0}));
    });
    go = true;
    ASSERT_TRUE(wait_until_others_sleep());
    EXPECT_LE(runs, 4) << "only the function that each session had started";
}

}  // namespace
}  // namespace gpupool::test
