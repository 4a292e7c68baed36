// The worker's tables: handles, incoming pieces, images.
#include <gtest/gtest.h>

#include "server/worker/session/handle_table.h"
#include "server/worker/transfers/incoming.h"

namespace gpupool::test {
namespace {

using codec::HandleKind;
using worker::HandleTable;
using worker::Incoming;

template <class Handle>
Handle client(HandleKind kind, std::uint64_t serial) {
    return codec::from_wire<Handle>(codec::make_handle(kind, serial));
}

TEST(HandleTable, FirstUseIsPerContextAndRepeatedAfterAFailure) {
    HandleTable table;
    const auto function = codec::from_wire<CUfunction>(codec::make_handle(codec::HandleKind::function, 1));
    table.bind(function, reinterpret_cast<CUfunction>(0xf00));
    bool first = false;
    EXPECT_EQ(table.use(function, 1, first).driver, 0xf00u);
    EXPECT_TRUE(first);
    table.use(function, 1, first);
    EXPECT_FALSE(first);
    table.use(function, 2, first);
    EXPECT_TRUE(first);
    table.forget_use(function);
    table.use(function, 2, first);
    EXPECT_TRUE(first) << "the earlier launch failed";
}

TEST(HandleTable, FindsOnlyBoundHandles) {
    HandleTable table;
    const auto event = client<CUevent>(HandleKind::event, 1);
    EXPECT_EQ(table.find(event).found, HandleTable::Found::no);
    table.bind(event, codec::from_wire<CUevent>(0xabc0));
    EXPECT_EQ(table.find(event).found, HandleTable::Found::yes);
    EXPECT_EQ(table.find(event).driver, 0xabc0u);
    EXPECT_EQ(table.client_handle(codec::from_wire<CUevent>(0xabc0)), event);
    table.unbind(codec::to_wire(event));
    EXPECT_EQ(table.find(event).found, HandleTable::Found::no);
    EXPECT_EQ(table.size(), 0u);
}

TEST(HandleTable, ALimitRefusesNewHandlesAndCountsNoFailedOnes) {
    HandleTable table;
    const auto handle = [](std::uint64_t serial) { return codec::make_handle(HandleKind::event, serial); };
    const auto bind = [&](std::uint64_t serial) {
        table.bind(client<CUevent>(HandleKind::event, serial), codec::from_wire<CUevent>(serial << 8));
    };
    table.limit(2);
    table.bind_failed(handle(1));
    EXPECT_EQ(table.check_new(HandleKind::event, handle(2)), CUDA_SUCCESS);
    bind(2);
    bind(3);
    EXPECT_EQ(table.check_new(HandleKind::event, handle(4)), CUDA_ERROR_OUT_OF_MEMORY);
    table.bind_failed(handle(4));
    table.unbind(handle(4));
    table.unbind(handle(3));
    EXPECT_EQ(table.check_new(HandleKind::event, handle(5)), CUDA_SUCCESS);
    table.limit(1);
    EXPECT_EQ(table.check_new(HandleKind::event, handle(5)), CUDA_ERROR_OUT_OF_MEMORY) << "a lower limit";
    table.limit(2);
    bind(1);  // the handle whose creation had failed
    EXPECT_EQ(table.check_new(HandleKind::event, handle(5)), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(HandleTable, HandleOfAnotherKindIsNotFound) {
    HandleTable table;
    const auto stream = client<CUstream>(HandleKind::stream, 1);
    table.bind(stream, codec::from_wire<CUstream>(0x10));
    EXPECT_EQ(table.find(codec::from_wire<CUevent>(codec::to_wire(stream))).found, HandleTable::Found::no);
    // A kernel handle may be used as a function's, but not the other way round.
    const auto kernel = client<CUkernel>(HandleKind::kernel, 2);
    table.bind(kernel, codec::from_wire<CUkernel>(0x20));
    EXPECT_EQ(table.find(codec::from_wire<CUfunction>(codec::to_wire(kernel))).driver, 0x20u);
    const auto function = client<CUfunction>(HandleKind::function, 3);
    table.bind(function, codec::from_wire<CUfunction>(0x30));
    EXPECT_EQ(table.find(codec::from_wire<CUkernel>(codec::to_wire(function))).found, HandleTable::Found::no);
}

TEST(HandleTable, NullAndSpecialStreamsAreUnchanged) {
    HandleTable table;
    EXPECT_EQ(table.find(CUevent{}).found, HandleTable::Found::yes);
    EXPECT_EQ(table.find(CUevent{}).driver, 0u);
    EXPECT_EQ(table.find(CU_STREAM_LEGACY).driver, 1u);
    EXPECT_EQ(table.find(CU_STREAM_PER_THREAD).driver, 2u);
    EXPECT_EQ(table.find(codec::from_wire<CUevent>(1)).found, HandleTable::Found::no);
    EXPECT_EQ(table.client_handle(CU_STREAM_PER_THREAD), CU_STREAM_PER_THREAD);
    EXPECT_EQ(table.client_handle(CUevent{}), nullptr);
}

TEST(HandleTable, FailedCreationIsRemembered) {
    HandleTable table;
    const auto event = client<CUevent>(HandleKind::event, 1);
    table.bind_failed(codec::to_wire(event));
    EXPECT_EQ(table.find(event).found, HandleTable::Found::creation_failed);
    table.unbind(codec::to_wire(event));
    EXPECT_EQ(table.find(event).found, HandleTable::Found::no);
}

TEST(HandleTable, MintsOneNamePerDriverHandle) {
    HandleTable table;
    const auto first = table.client_handle(codec::from_wire<CUgraphNode>(0x40));
    EXPECT_EQ(codec::kind_of(codec::to_wire(first)), HandleKind::graph_node);
    EXPECT_NE(codec::to_wire(first) & codec::kMintedByWorker, 0u);
    EXPECT_EQ(table.client_handle(codec::from_wire<CUgraphNode>(0x40)), first);
    EXPECT_NE(table.client_handle(codec::from_wire<CUgraphNode>(0x50)), first);
    EXPECT_EQ(table.find(first).driver, 0x40u);
}

TEST(HandleTable, ReusedDriverHandleBelongsToItsNewName) {
    HandleTable table;
    const auto before = client<CUevent>(HandleKind::event, 1), after = client<CUevent>(HandleKind::event, 2);
    const auto driver = codec::from_wire<CUevent>(0x70);
    table.bind(before, driver);
    table.bind(after, driver);  // the driver reused the address before the worker executed the client's free
    table.unbind(codec::to_wire(before));
    EXPECT_EQ(table.client_handle(driver), after);
}

TEST(HandleTable, PartsEndWithTheirOwner) {
    HandleTable table;
    const auto library = client<CUlibrary>(HandleKind::library, 1);
    const auto kernel = client<CUkernel>(HandleKind::kernel, 2);
    const auto function = client<CUfunction>(HandleKind::function, 3);
    table.bind(library, codec::from_wire<CUlibrary>(0x10));
    table.bind(kernel, codec::from_wire<CUkernel>(0x20));
    table.bind(function, codec::from_wire<CUfunction>(0x30));
    table.add_part(codec::to_wire(library), codec::to_wire(kernel));
    table.add_part(codec::to_wire(kernel), codec::to_wire(function));
    table.unbind(codec::to_wire(library));
    EXPECT_EQ(table.size(), 0u);
    EXPECT_EQ(table.known_handle(codec::from_wire<CUfunction>(0x30)), nullptr);
}

TEST(HandleTable, PartsMayEndBeforeTheirOwner) {
    HandleTable table;
    const auto module = client<CUmodule>(HandleKind::module, 1);
    const auto function = client<CUfunction>(HandleKind::function, 2);
    table.bind(module, codec::from_wire<CUmodule>(0x10));
    table.bind(function, codec::from_wire<CUfunction>(0x20));
    table.add_part(codec::to_wire(module), codec::to_wire(function));
    table.add_part(0x77, codec::to_wire(function));  // no such owner
    table.unbind(codec::to_wire(function));
    EXPECT_EQ(table.size(), 1u);
    table.unbind(codec::to_wire(module));
    EXPECT_EQ(table.size(), 0u);
}

TEST(HandleTable, HandlesOfUnknownKindsAreHarmless) {
    HandleTable table;
    for (const std::uint64_t handle : {1ull, 0xffull << 52, ~0ull, 200ull << 52}) {
        EXPECT_EQ(table.find(codec::from_wire<CUevent>(handle)).found, HandleTable::Found::no);
        table.bind(codec::from_wire<CUevent>(handle), codec::from_wire<CUevent>(0x90));
        EXPECT_EQ(table.find(codec::from_wire<CUevent>(handle)).found, HandleTable::Found::no);
        table.unbind(handle);
    }
    EXPECT_EQ(table.size(), 0u);
}

TEST(IncomingPieces, LandInTheirPlacesInOrder) {
    Incoming incoming;
    std::byte memory[100];
    incoming.expect(1, 0, 60, memory);
    incoming.expect(1, 60, 40, memory + 60);
    EXPECT_EQ(incoming.place(1, 0, 20).data(), memory);
    incoming.landed(1, 0, 20);
    EXPECT_FALSE(incoming.take_landed(1));
    // The second piece may overtake the rest of the first.
    EXPECT_EQ(incoming.place(1, 60, 40).data(), memory + 60);
    incoming.landed(1, 60, 40);
    EXPECT_FALSE(incoming.take_landed(1)) << "pieces are taken in their order";
    EXPECT_EQ(incoming.place(1, 20, 40).data(), memory + 20);
    incoming.landed(1, 20, 40);
    const auto first = incoming.take_landed(1), second = incoming.take_landed(1);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->place, memory);
    EXPECT_EQ(second->offset, 60u);
    EXPECT_FALSE(incoming.take_landed(1));
}

TEST(IncomingPieces, ArriveWholeOverALaneAndOnce) {
    Incoming incoming;
    std::byte memory[100];
    incoming.expect(1, 0, 60, memory);
    incoming.expect(1, 60, 40, memory + 60);
    EXPECT_TRUE(incoming.claim(1, 0, 59).empty()) << "a part";
    EXPECT_TRUE(incoming.claim(1, 0, 100).empty()) << "more than a piece";
    EXPECT_TRUE(incoming.claim(2, 0, 60).empty()) << "another transfer";
    EXPECT_EQ(incoming.claim(1, 60, 40).data(), memory + 60);
    EXPECT_TRUE(incoming.claim(1, 60, 40).empty()) << "another connection receives it";
    EXPECT_TRUE(incoming.place(1, 60, 40).empty()) << "over any connection";
    EXPECT_EQ(incoming.place(1, 0, 10).data(), memory);
    incoming.landed(1, 0, 10);
    EXPECT_TRUE(incoming.claim(1, 0, 60).empty()) << "another connection receives it already";
    incoming.landed_whole(1, 60);
    EXPECT_FALSE(incoming.take_landed(1)) << "pieces are taken in their order";
    incoming.landed(1, 10, 50);
    EXPECT_EQ(incoming.take_landed(1)->offset, 0u);
    EXPECT_EQ(incoming.take_landed(1)->offset, 60u);
}

TEST(IncomingPieces, AbandonedPiecesAreDropped) {
    Incoming incoming;
    std::byte memory[100]{};
    std::vector<std::byte*> free;
    for (int piece = 0; piece < 5; ++piece) {
        incoming.expect(1, static_cast<std::uint64_t>(piece) * 20, 20, memory + 20 * piece);
    }
    incoming.place(1, 0, 20);
    incoming.landed(1, 0, 20);  // all of it has landed but was not taken
    incoming.place(1, 20, 10);  // a part is being received
    incoming.claim(1, 40, 20);  // a lane is receiving it
    incoming.place(1, 60, 10);  // some of it has landed
    incoming.landed(1, 60, 10);
    incoming.abandon(1, [&](std::byte* place) { free.push_back(place); });
    EXPECT_EQ(free, (std::vector<std::byte*>{memory, memory + 60, memory + 80}))
        << "places that no connection writes to";
    incoming.landed(1, 20, 10);
    incoming.landed_whole(1, 40);
    EXPECT_EQ(free, (std::vector<std::byte*>{memory, memory + 60, memory + 80, memory + 20, memory + 40}));
    const auto inside = [&](std::span<std::byte> place) {
        return place.data() >= memory && place.data() < memory + sizeof memory;
    };
    for (const auto& [offset, bytes] : {std::pair{30, 10}, {70, 10}}) {
        const auto rest = incoming.place(1, static_cast<std::uint64_t>(offset), static_cast<std::size_t>(bytes));
        EXPECT_EQ(rest.size(), static_cast<std::size_t>(bytes));
        EXPECT_FALSE(inside(rest));
        incoming.landed(1, static_cast<std::uint64_t>(offset), static_cast<std::size_t>(bytes));
    }
    const auto last = incoming.claim(1, 80, 20);
    EXPECT_EQ(last.size(), 20u);
    EXPECT_FALSE(inside(last));
    std::fill(last.begin(), last.end(), std::byte{1});
    incoming.landed_whole(1, 80);
    EXPECT_EQ(free.size(), 5u) << "each place once";
    EXPECT_TRUE(incoming.claim(1, 80, 20).empty()) << "no more are accepted";
    EXPECT_TRUE(incoming.begin(1)) << "the name is free again";
}

TEST(IncomingPieces, RecordOfAbandonedPiecesIsBounded) {
    Incoming incoming;
    std::byte memory[8];
    std::size_t free = 0;
    for (std::uint64_t transfer = 1; transfer <= Incoming::kMaxAbandoned + 1; ++transfer) {
        incoming.expect(transfer, 0, 8, memory);
        incoming.abandon(transfer, [&](std::byte*) { ++free; });
    }
    EXPECT_EQ(free, Incoming::kMaxAbandoned + 1);
    EXPECT_TRUE(incoming.place(1, 0, 8).empty());
    EXPECT_EQ(incoming.place(2, 0, 8).size(), 8u);
}

TEST(IncomingPieces, UnrequestedDataHasNoPlace) {
    Incoming incoming;
    std::byte memory[100];
    incoming.expect(1, 100, 50, memory);
    EXPECT_TRUE(incoming.place(2, 100, 50).empty()) << "another transfer";
    EXPECT_TRUE(incoming.place(1, 0, 50).empty()) << "before it";
    EXPECT_TRUE(incoming.place(1, 110, 40).empty()) << "a gap";
    EXPECT_TRUE(incoming.place(1, 100, 51).empty()) << "one byte too many";
    EXPECT_TRUE(incoming.place(1, 100, ~std::size_t{0}).empty());
    EXPECT_EQ(incoming.place(1, 100, 30).size(), 30u);
    incoming.landed(1, 100, 30);
    EXPECT_TRUE(incoming.place(1, 100, 30).empty()) << "it has landed already";
    EXPECT_TRUE(incoming.place(1, 130, 21).empty());
    incoming.forget(1);
    EXPECT_TRUE(incoming.place(1, 130, 20).empty());
    incoming.landed(1, 130, 20);  // has no effect
}

}  // namespace
}  // namespace gpupool::test
