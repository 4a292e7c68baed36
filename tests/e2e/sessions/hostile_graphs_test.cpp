// Graphs from a client that violates every rule: unnamed addresses, foreign handles, false counts and sizes, endless
// nesting, calls out of order. Each is refused, no worker crashes, and memory stays bounded.

#include "protocol/calls/graph_node.h"
#include "tests/e2e/sessions/hostile_client.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;

class HostileGraphs : public HostileTest {
  protected:
    void TearDown() override {
        EXPECT_EQ(server_log().find("exit code 1"), std::string::npos);  // a sanitizer's exit code
        HostileTest::TearDown();
    }
    CUgraph make_graph() {
        auto graph = client_->mint<CUgraph>();
        EXPECT_EQ(client_->call<calls::cuGraphCreate>(&graph, 0u), CUDA_SUCCESS);
        return graph;
    }
    std::optional<int> add_node(CUgraph graph, const GraphNode& node, const std::vector<unsigned char>& payload = {},
                                CUgraphNode* made = nullptr, const std::vector<CUgraphNode>& after = {}) {
        const bool owning = node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
        return owning ? add_owning(graph, node, payload, made, after) : add_plain(graph, node, payload, made, after);
    }
    std::optional<int> add_plain(CUgraph graph, const GraphNode& node, const std::vector<unsigned char>& payload = {},
                                 CUgraphNode* made = nullptr, const std::vector<CUgraphNode>& after = {}) {
        auto created = client_->mint<CUgraphNode>();
        if (made != nullptr) {
            *made = created;
        }
        return client_->call<calls::gpGraphAddNode>(&created, graph, after.data(),
                                                    static_cast<const CUgraphEdgeData*>(nullptr), after.size(),
                                                    std::size_t{0}, &node, payload.data(), payload.size());
    }
    std::optional<int> add_owning(CUgraph graph, const GraphNode& node, const std::vector<unsigned char>& payload = {},
                                  CUgraphNode* made = nullptr, const std::vector<CUgraphNode>& after = {}) {
        auto created = client_->mint<CUgraphNode>();
        CUdeviceptr address = 0;
        CUgraph graphs[1] = {};
        if (made != nullptr) {
            *made = created;
        }
        return client_->call<calls::gpGraphAddOwningNode>(
            &created, graph, after.data(), static_cast<const CUgraphEdgeData*>(nullptr), after.size(), std::size_t{0},
            &node, payload.data(), payload.size(), &address, graphs, std::size_t{0});
    }
    std::optional<int> add_child(CUgraph graph, CUgraph child, CUgraphNode* made = nullptr) {
        GraphNode node;
        node.type = CU_GRAPH_NODE_TYPE_GRAPH;
        node.graph = child;
        return add_node(graph, node, {}, made);
    }
    CUgraph graph_within(CUgraphNode node) {
        CUgraph embedded = nullptr;
        const auto number = client_->add<calls::cuGraphChildGraphNodeGetGraph>(node, &embedded);
        client_->flush();
        const auto answer = client_->answer_to(number);
        EXPECT_TRUE(answer && answer->header.result == CUDA_SUCCESS);
        if (answer && answer->body.size() >= sizeof embedded) {
            std::memcpy(&embedded, answer->body.data(), sizeof embedded);
        }
        return embedded;
    }
    std::optional<int> instantiate(CUgraph graph, CUgraphExec& executable) {
        executable = client_->mint<CUgraphExec>();
        CUgraphNode error_node = nullptr;
        int outcome = 0;
        return client_->call<calls::gpGraphInstantiate>(&executable, graph, std::uint64_t{0}, &error_node, &outcome);
    }
    std::optional<int> launch(CUgraphExec executable, CUstream stream) {
        return client_->call<calls::cuGraphLaunch>(executable, stream);
    }
    std::optional<int> change(CUgraphExec executable, CUgraphNode node, const GraphNode& to) {
        return client_->call<calls::gpGraphNodeSetParams>(executable, node, &to,
                                                          static_cast<const unsigned char*>(nullptr), std::size_t{0});
    }
    // Sends a call without waiting for its reply, then takes its error from the context, which reports it once.
    template <class Send>
    void unwaited(Send&& send) {
        const std::uint16_t flags = std::exchange(client_->flags, std::uint16_t{0});
        send();
        ASSERT_TRUE(client_->flush());
        client_->flags = flags;
        (void)client_->call<calls::gpContextSynchronize>(codec::from_wire<CUcontext>(client_->context));
    }
    void change_unwaited(CUgraphExec executable, CUgraphNode node, const GraphNode& to) {
        unwaited([&] {
            client_->add<calls::gpGraphNodeSetParams>(executable, node, &to, static_cast<const unsigned char*>(nullptr),
                                                      std::size_t{0});
        });
    }
    static GraphNode typed(int type) {
        GraphNode node;
        node.type = type;
        return node;
    }
    // In the current context, which a client always names.
    [[nodiscard]] GraphNode copy_from_host(std::uint64_t host, CUdeviceptr to, std::size_t bytes) const {
        GraphNode node = typed(CU_GRAPH_NODE_TYPE_MEMCPY);
        node.context = codec::from_wire<CUcontext>(client_->context);
        node.copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        node.copy.srcHost = reinterpret_cast<const void*>(host);
        node.copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        node.copy.dstDevice = to;
        node.copy.WidthInBytes = bytes;
        node.copy.Height = node.copy.Depth = 1;
        return node;
    }
    static GraphNode host_function(std::uint64_t name) {
        GraphNode node = typed(CU_GRAPH_NODE_TYPE_HOST);
        node.host_function = name;
        return node;
    }
    void expect_refused(const char* what, const std::optional<int>& result) {
        ASSERT_TRUE(result.has_value()) << what << " ended the session";
        EXPECT_NE(*result, CUDA_SUCCESS) << what;
    }
};

// A copy must not read or write the worker's memory, or any address that is not a name.
TEST_F(HostileGraphs, UnnamedHostMemoryIsRefused) {
    const CUgraph graph = make_graph();
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    const auto inside = reinterpret_cast<std::uint64_t>(&graph);
    for (const std::uint64_t host :
         {std::uint64_t{0}, std::uint64_t{8}, inside, host_memory_name(1) + 1, kHostMemoryNames - 4096,
          host_memory_name(kMaxHostMemoryNames), ~std::uint64_t{0}, std::uint64_t{HostileClient::kWindowBase}}) {
        GraphNode node = copy_from_host(host, slab, 64);
        expect_refused("from", add_node(graph, node));
        std::swap(node.copy.srcMemoryType, node.copy.dstMemoryType);
        node.copy.dstHost = reinterpret_cast<void*>(host);
        node.copy.srcDevice = slab;
        expect_refused("to", add_node(graph, node));
        node.copy.srcMemoryType = node.copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        node.copy.dstDevice = host;
        expect_refused("unified", add_node(graph, node));
    }
    for (const int type : {0, 5, -1, 0x7fffffff}) {
        GraphNode node = copy_from_host(host_memory_name(1), slab, 64);
        std::memcpy(&node.copy.srcMemoryType, &type, sizeof type);
        expect_refused("no type", add_node(graph, node));
    }
    EXPECT_TRUE(client_->alive());
}

// The capture is over for the driver, although one of its streams was never ended by a call. A copy would then start at
// once, from an address that is only a name.
TEST_F(HostileGraphs, CopiesIntoAnEndedCaptureAreRefused) {
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    const CUstream first = client_->make_stream(), second = client_->make_stream();
    const CUevent event = client_->make_event();
    ASSERT_EQ(client_->call<calls::cuStreamBeginCapture_v2>(first, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    ASSERT_EQ(client_->call<calls::cuEventRecord>(event, first), CUDA_SUCCESS);
    ASSERT_EQ(client_->call<calls::cuStreamWaitEvent>(second, event, 0u), CUDA_SUCCESS);
    const CUDA_MEMCPY3D copy = copy_from_host(host_memory_name(1), slab, 64).copy;
    EXPECT_EQ(client_->call<calls::gpCaptureCopy>(&copy, 1u, second), CUDA_SUCCESS);
    CUDA_MEMCPY3D unnamed = copy;
    unnamed.srcHost = reinterpret_cast<const void*>(0x4000);
    expect_refused("an address", client_->call<calls::gpCaptureCopy>(&unnamed, 1u, second));
    expect_refused("nothing",
                   client_->call<calls::gpCaptureCopy>(static_cast<const CUDA_MEMCPY3D*>(nullptr), 1u, second));
    client_->flags = 0;
    client_->add<calls::cuStreamDestroy_v2>(first);
    client_->flags = codec::kReplyWanted;
    for (const unsigned plain : {1u, 0u}) {
        expect_refused("a copy", client_->call<calls::gpCaptureCopy>(&copy, plain, second));
    }
    expect_refused("a function", client_->call<calls::gpCaptureHostFunction>(std::uint64_t{1}, second));
    CUgraph graph = nullptr;
    expect_refused("its end", client_->call<calls::gpCaptureEnd>(second, 0u, &graph));
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(second), CUDA_SUCCESS) << "it must be an ordinary stream again";
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileGraphs, CaptureCallsOutsideOfACaptureAreRefused) {
    const CUstream stream = client_->make_stream();
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    const CUDA_MEMCPY3D copy = copy_from_host(host_memory_name(1), slab, 64).copy;
    CUgraph graph = nullptr;
    for (const CUstream given : {stream, CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
        expect_refused("copy", client_->call<calls::gpCaptureCopy>(&copy, 1u, given));
        expect_refused("function", client_->call<calls::gpCaptureHostFunction>(std::uint64_t{1}, given));
        expect_refused("end", client_->call<calls::gpCaptureEnd>(given, 0u, &graph));
    }
    expect_refused("legacy",
                   client_->call<calls::cuStreamBeginCapture_v2>(CUstream{nullptr}, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_EQ(client_->call<calls::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    expect_refused("twice", client_->call<calls::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(client_->call<calls::gpCaptureEnd>(stream, 0u, &graph), CUDA_SUCCESS);
    expect_refused("its second end", client_->call<calls::gpCaptureEnd>(stream, 0u, &graph));
    EXPECT_TRUE(client_->alive());
}

// The captured launch would use the executable's own memory, even after the executable is gone.
TEST_F(HostileGraphs, LaunchIntoACaptureIsRefused) {
    const CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    const CUstream stream = client_->make_stream();
    ASSERT_EQ(client_->call<calls::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    expect_refused("a launch", launch(executable, stream));
    CUgraph captured = nullptr;
    EXPECT_EQ(client_->call<calls::gpCaptureEnd>(stream, 0u, &captured), CUDA_SUCCESS);
}

TEST_F(HostileGraphs, WrongHandlesAreRefused) {
    const CUgraph graph = make_graph(), other = make_graph();
    CUgraphNode node = nullptr, others_node = nullptr;
    ASSERT_EQ(add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY), {}, &node), CUDA_SUCCESS);
    ASSERT_EQ(add_node(other, typed(CU_GRAPH_NODE_TYPE_EMPTY), {}, &others_node), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    const CUstream stream = client_->make_stream();
    std::vector<std::uint64_t> wrong = {0, 0x10, 0xdeadbeefdeadbeef, ~0ull, codec::to_wire(stream), client_->context};
    for (const auto kind : {codec::HandleKind::graph, codec::HandleKind::graph_node, codec::HandleKind::graph_exec}) {
        wrong.push_back(codec::make_handle(kind, 9999));
        wrong.push_back(codec::make_handle(kind, 9999, true));
    }
    const GraphNode empty = typed(CU_GRAPH_NODE_TYPE_EMPTY);
    for (const std::uint64_t handle : wrong) {
        const auto bad_graph = codec::from_wire<CUgraph>(handle);
        const auto bad_node = codec::from_wire<CUgraphNode>(handle);
        const auto bad_executable = codec::from_wire<CUgraphExec>(handle);
        CUgraphExec made = nullptr;
        CUgraphExecUpdateResultInfo information{};
        std::size_t bytes = 0;
        unsigned enabled = 0;
        expect_refused("add", add_node(bad_graph, empty));
        expect_refused("behind", add_node(graph, empty, {}, nullptr, {bad_node}));
        expect_refused("child", add_child(graph, bad_graph));
        expect_refused("instantiate", instantiate(bad_graph, made));
        expect_refused("launch", launch(bad_executable, stream));
        expect_refused("upload", client_->call<calls::cuGraphUpload>(bad_executable, stream));
        expect_refused("update", client_->call<calls::cuGraphExecUpdate_v2>(bad_executable, graph, &information));
        expect_refused("update to", client_->call<calls::cuGraphExecUpdate_v2>(executable, bad_graph, &information));
        expect_refused("dot", client_->call<calls::gpGraphDot>(bad_graph, 0u, &bytes));
        expect_refused("destroy", client_->call<calls::cuGraphDestroy>(bad_graph));
        expect_refused("destroy executable", client_->call<calls::cuGraphExecDestroy>(bad_executable));
        std::uint64_t on_device = 0;
        expect_refused("watch", client_->call<calls::gpGraphExecWatch>(bad_executable, std::uint64_t{1}));
        expect_refused("on device", client_->call<calls::gpGraphExecOnDevice>(bad_executable, &on_device));
        expect_refused("enable", client_->call<calls::cuGraphNodeSetEnabled>(executable, bad_node, 1u));
        expect_refused("enable in", client_->call<calls::cuGraphNodeSetEnabled>(bad_executable, node, 1u));
        expect_refused("enabled", client_->call<calls::cuGraphNodeGetEnabled>(executable, bad_node, &enabled));
        std::vector<unsigned char> room(64);
        GraphNode out;
        expect_refused("ask",
                       client_->call<calls::gpGraphNodeGetParams>(bad_node, &out, room.data(), room.size(), &bytes));
        expect_refused("set", client_->call<calls::gpGraphNodeSetParams>(CUgraphExec{nullptr}, bad_node, &empty,
                                                                         static_cast<const unsigned char*>(nullptr),
                                                                         std::size_t{0}));
        GraphNode event = typed(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
        event.event = codec::from_wire<CUevent>(handle);
        expect_refused("record", add_node(graph, event));
        GraphNode kernel = typed(CU_GRAPH_NODE_TYPE_KERNEL);
        kernel.function = codec::from_wire<CUfunction>(handle);
        kernel.grid_x = kernel.grid_y = kernel.grid_z = kernel.block_x = kernel.block_y = kernel.block_z = 1;
        expect_refused("kernel", add_node(graph, kernel));
    }
    std::uint64_t address = 0;
    expect_refused("on device without the flag", client_->call<calls::gpGraphExecOnDevice>(executable, &address));
    expect_refused("another graph's node", add_node(graph, empty, {}, nullptr, {others_node}));
    expect_refused("another graph's node", client_->call<calls::cuGraphNodeSetEnabled>(executable, others_node, 1u));
    expect_refused("nothing", client_->call<calls::gpGraphNodeSetParams>(
                                  executable, node, static_cast<const GraphNode*>(nullptr),
                                  static_cast<const unsigned char*>(nullptr), std::size_t{0}));
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileGraphs, UnknownTypesAndFalseCountsAreRefused) {
    const CUgraph graph = make_graph();
    for (const int type : {-1, 10, 11, 12, 14, 15, 99, 0x7fffffff}) {
        expect_refused("type", add_node(graph, typed(type), std::vector<unsigned char>(64)));
    }
    const std::vector<unsigned char> payload(4 * sizeof(CUstreamBatchMemOpParams));
    for (const std::uint32_t count : {0u, 1u, 3u, 5u, 0x10000000u, ~0u}) {
        GraphNode operations = typed(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
        operations.count = count;
        expect_refused("operations", add_node(graph, operations, payload));
        GraphNode allocation = typed(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        allocation.count = count;
        allocation.bytes = 64;
        allocation.pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        allocation.pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        expect_refused("access", add_node(graph, allocation, std::vector<unsigned char>(7)));
    }
    GraphNode conditional = typed(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    conditional.count = 1000;
    expect_refused("graphs", add_node(graph, conditional));
    // Edge data without the edges.
    auto created = client_->mint<CUgraphNode>();
    const GraphNode empty = typed(CU_GRAPH_NODE_TYPE_EMPTY);
    const CUgraphEdgeData edges[2] = {};
    expect_refused("edges", client_->call<calls::gpGraphAddNode>(
                                &created, graph, static_cast<const CUgraphNode*>(nullptr), edges, std::size_t{0},
                                std::size_t{2}, &empty, static_cast<const unsigned char*>(nullptr), std::size_t{0}));
    // Each node type by the call for the other kind of node.
    GraphNode allocation = typed(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    allocation.bytes = 64;
    allocation.pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation.pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    expect_refused("allocation", add_plain(graph, allocation));
    EXPECT_EQ(add_owning(graph, allocation), CUDA_SUCCESS);
    expect_refused("empty", add_owning(graph, empty));
    // Room for an answer that is larger than any record.
    CUgraphNode node = nullptr;
    ASSERT_EQ(add_node(graph, empty, {}, &node), CUDA_SUCCESS);
    std::vector<unsigned char> room(kMiB);
    GraphNode out;
    std::size_t bytes = 0;
    EXPECT_TRUE(client_->call<calls::gpGraphNodeGetParams>(node, &out, room.data(), room.size(), &bytes).has_value() ||
                client_->ended());
}

TEST_F(HostileGraphs, ImpossibleSizesAreRefused) {
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    for (const std::size_t bytes :
         {std::size_t{1} << 33, std::size_t{1} << 46, std::size_t{1} << 63, ~std::size_t{0}}) {
        const CUgraph graph = make_graph();
        GraphNode node = copy_from_host(host_memory_name(1), slab, bytes);
        CUgraphExec executable = nullptr;
        if (add_node(graph, node) == CUDA_SUCCESS) {
            expect_refused("bytes", instantiate(graph, executable));
        }
        node = copy_from_host(host_memory_name(1), slab, 1);
        node.copy.Height = bytes;
        if (add_node(graph, node) == CUDA_SUCCESS) {
            expect_refused("rows", instantiate(graph, executable));
        }
    }
    EXPECT_TRUE(client_->alive());
    expect_bounded(256 * kMiB);
}

TEST_F(HostileGraphs, GraphsThatContainThemselvesAreRefused) {
    const CUgraph graph = make_graph();
    expect_refused("itself", add_child(graph, graph));
    CUgraphNode a = nullptr, b = nullptr;
    ASSERT_EQ(add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY), {}, &a), CUDA_SUCCESS);
    ASSERT_EQ(add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY), {}, &b, {a}), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuGraphAddDependencies_v2>(
                  graph, &b, &a, static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1}),
              CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    expect_refused("a circle", instantiate(graph, executable));
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    expect_refused("a circle that has to be expanded", instantiate(graph, executable));
    // A graph is added to a graph that it contains.
    const CUgraph inner = make_graph(), outer = make_graph();
    CUgraphNode node = nullptr;
    ASSERT_EQ(add_child(outer, inner, &node), CUDA_SUCCESS);
    const CUgraph embedded = graph_within(node);
    EXPECT_TRUE(add_child(embedded, outer).has_value()) << "a copy of it";
    EXPECT_TRUE(instantiate(outer, executable).has_value());
    EXPECT_EQ(client_->call<calls::cuGraphDestroy>(outer), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

// A destroyed node's child graph is destroyed with it. Its handle must not name a graph that the driver creates later
// at the same address.
TEST_F(HostileGraphs, ChildGraphOfADestroyedNodeIsForgotten) {
    const CUgraph inner = make_graph(), outer = make_graph();
    ASSERT_EQ(add_node(inner, typed(CU_GRAPH_NODE_TYPE_EMPTY)), CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    ASSERT_EQ(add_child(outer, inner, &node), CUDA_SUCCESS);
    const CUgraph embedded = graph_within(node);
    ASSERT_EQ(add_node(embedded, typed(CU_GRAPH_NODE_TYPE_EMPTY)), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuGraphDestroyNode>(node), CUDA_SUCCESS);
    EXPECT_EQ(add_node(embedded, typed(CU_GRAPH_NODE_TYPE_EMPTY)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_NE(client_->call<calls::cuGraphDestroyNode>(node), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

// Each graph holds the one before twice, so a few calls would make a graph of any size.
TEST_F(HostileGraphs, ExponentialNestingIsBounded) {
    CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY)), CUDA_SUCCESS);
    int doubled = 0;
    for (; doubled < 64; ++doubled) {
        const CUgraph next = make_graph();
        const auto first = add_child(next, graph);
        const auto second = add_child(next, graph);
        ASSERT_TRUE(first && second);
        if (*first != CUDA_SUCCESS || *second != CUDA_SUCCESS) {
            break;
        }
        EXPECT_EQ(client_->call<calls::cuGraphDestroy>(graph), CUDA_SUCCESS);
        graph = next;
    }
    EXPECT_GE(doubled, 10);
    EXPECT_LT(doubled, 25);
    EXPECT_TRUE(client_->alive());
    expect_bounded(4096 * kMiB);
}

TEST_F(HostileGraphs, UnboundedNestingIsRefused) {
    CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    int depth = 1;
    for (; depth < 2000; ++depth) {
        const CUgraph next = make_graph();
        if (add_child(next, graph) != CUDA_SUCCESS) {
            break;
        }
        graph = next;
    }
    EXPECT_GE(depth, 16);
    EXPECT_LT(depth, 200);
    CUgraphExec executable = nullptr;
    EXPECT_EQ(instantiate(graph, executable), CUDA_SUCCESS) << "permitted nesting must work";
    EXPECT_EQ(client_->call<calls::cuGraphDestroy>(graph), CUDA_SUCCESS);
}

// The same from within: each graph is added to the innermost one.
TEST_F(HostileGraphs, UnboundedNestingFromWithinIsRefused) {
    const CUgraph outer = make_graph(), single = make_graph();
    CUgraph innermost = outer;
    int depth = 1;
    for (; depth < 2000; ++depth) {
        CUgraphNode node = nullptr;
        if (add_child(innermost, single, &node) != CUDA_SUCCESS) {
            break;
        }
        innermost = graph_within(node);
    }
    EXPECT_GE(depth, 16);
    EXPECT_LT(depth, 200);
    EXPECT_EQ(client_->call<calls::cuGraphDestroy>(outer), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileGraphs, DestroyedGraphsAreInvalid) {
    const CUgraph graph = make_graph(), outer = make_graph();
    CUgraphNode node = nullptr, child = nullptr;
    ASSERT_EQ(add_node(graph, host_function(1), {}, &node), CUDA_SUCCESS);
    ASSERT_EQ(add_child(outer, graph, &child), CUDA_SUCCESS);
    CUgraphExec executable = nullptr, made = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuGraphDestroy>(graph), CUDA_SUCCESS);
    expect_refused("again", client_->call<calls::cuGraphDestroy>(graph));
    expect_refused("instantiate", instantiate(graph, made));
    expect_refused("add", add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY)));
    GraphNode out;
    std::size_t bytes = 0;
    std::vector<unsigned char> room(64);
    expect_refused("node", client_->call<calls::gpGraphNodeGetParams>(node, &out, room.data(), room.size(), &bytes));
    const GraphNode function = host_function(2);
    expect_refused(
        "node", client_->call<calls::gpGraphNodeSetParams>(executable, node, &function,
                                                           static_cast<const unsigned char*>(nullptr), std::size_t{0}));
    EXPECT_EQ(instantiate(outer, made), CUDA_SUCCESS) << "a copy of it";
    EXPECT_EQ(client_->call<calls::cuGraphExecDestroy>(executable), CUDA_SUCCESS);
    expect_refused("again", client_->call<calls::cuGraphExecDestroy>(executable));
    expect_refused("launch", launch(executable, client_->make_stream()));
    EXPECT_TRUE(client_->alive());
}

// Many instantiations ask for the same name before the first is complete.
TEST_F(HostileGraphs, ExecutablesNameIsGivenOnce) {
    const CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    auto executable = client_->mint<CUgraphExec>();
    CUgraphNode error_node = nullptr;
    int outcome = 0;
    std::vector<std::uint64_t> numbers;
    for (int i = 0; i < 64; ++i) {
        numbers.push_back(
            client_->add<calls::gpGraphInstantiate>(&executable, graph, std::uint64_t{0}, &error_node, &outcome));
    }
    client_->flush();
    int made = 0;
    for (const auto number : numbers) {
        const auto result = client_->result_of(number);
        ASSERT_TRUE(result.has_value());
        made += *result == CUDA_SUCCESS ? 1 : 0;
    }
    EXPECT_EQ(made, 1);
    EXPECT_EQ(client_->call<calls::cuGraphExecDestroy>(executable), CUDA_SUCCESS);
}

// A graph is changed and destroyed while a helper thread instantiates it.
TEST_F(HostileGraphs, GraphDestroyedWhileItIsInstantiated) {
    for (int round = 0; round < 20; ++round) {
        const CUgraph graph = make_graph();
        CUgraphNode node = nullptr;
        for (int i = 0; i < 50; ++i) {
            ASSERT_EQ(add_node(graph, host_function(1), {}, &node), CUDA_SUCCESS);
        }
        auto executable = client_->mint<CUgraphExec>();
        CUgraphNode error_node = nullptr;
        int outcome = 0;
        const auto number =
            client_->add<calls::gpGraphInstantiate>(&executable, graph, std::uint64_t{0}, &error_node, &outcome);
        client_->add<calls::cuGraphDestroyNode>(node);
        const auto end = client_->add<calls::cuGraphDestroy>(graph);
        client_->flush();
        EXPECT_TRUE(client_->result_of(number).has_value());
        EXPECT_TRUE(client_->result_of(end).has_value());
    }
    EXPECT_TRUE(client_->alive());
}

// The client never takes a graph's client steps, or acknowledges them at the wrong time, or twice.
TEST_F(HostileGraphs, IgnoredClientStepsBlockOnlyTheirStream) {
    const CUgraph graph = make_graph();
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    ASSERT_EQ(add_node(graph, copy_from_host(host_memory_name(1), slab, kMiB)), CUDA_SUCCESS);
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    const CUstream stream = client_->make_stream(), other = client_->make_stream();
    client_->flags = 0;
    for (int i = 0; i < 2000; ++i) {
        client_->add<calls::cuGraphLaunch>(executable, stream);
    }
    client_->flags = codec::kReplyWanted;
    client_->flush();
    const auto ticket = [](std::uint64_t number) { return codec::kTransferOfWorker | number; };
    for (const std::uint64_t number : {0ull, 3ull, 77ull, ~0ull}) {
        expect_refused("done", client_->call<calls::gpHostFunctionDone>(ticket(number)));
    }
    // The numbers of a graph's transfers lead to the graph's memory, so a client's own copies must not use them.
    for (const std::uint64_t number : {1ull, 2ull, 3ull}) {
        expect_refused("to", client_->call<calls::gpCopyToDevice>(slab, kMiB, ticket(number), std::uint64_t{0},
                                                                  static_cast<const unsigned char*>(nullptr),
                                                                  std::size_t{0}, other));
        expect_refused("from", client_->call<calls::gpCopyFromDevice>(slab, kMiB, ticket(number), other));
    }
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(other), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuGraphExecDestroy>(executable), CUDA_SUCCESS) << "while it waits";
    EXPECT_TRUE(client_->alive());
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

// A launch that waits in its stream runs the executable as it was at the launch.
TEST_F(HostileGraphs, UpdateDoesNotAffectWaitingLaunches) {
    const CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    const CUstream stream = client_->make_stream();
    constexpr std::uint64_t kBefore = 9;
    ASSERT_EQ(client_->call<calls::gpHostFunction>(kBefore, stream), CUDA_SUCCESS);
    ASSERT_EQ(launch(executable, stream), CUDA_SUCCESS);
    CUgraphExecUpdateResultInfo information{};
    ASSERT_EQ(client_->call<calls::cuGraphExecUpdate_v2>(executable, graph, &information), CUDA_SUCCESS);
    ASSERT_EQ(launch(executable, stream), CUDA_SUCCESS);
    ASSERT_EQ(client_->call<calls::gpHostFunctionDone>(kBefore), CUDA_SUCCESS);
    for (const std::uint64_t ticket : {1, 2}) {
        EXPECT_TRUE(eventually([&] {
            return client_->call<calls::gpHostFunctionDone>(codec::kTransferOfWorker | ticket) == CUDA_SUCCESS;
        })) << ticket;
    }
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(stream), CUDA_SUCCESS);
}

// A context is destroyed while its graph waits for data.
TEST_F(HostileGraphs, ContextMayBeDestroyedWhileAGraphWaitsForData) {
    const CUcontext second = client_->make_another_context();
    ASSERT_NE(second, nullptr);
    const CUdeviceptr slab = client_->make_slab(2 * kMiB);
    client_->context = codec::to_wire(second);
    const CUstream stream = client_->make_stream();
    const CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, copy_from_host(host_memory_name(1), slab, kMiB)), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    ASSERT_EQ(launch(executable, stream), CUDA_SUCCESS);
    client_->read_for(milliseconds(200));
    EXPECT_EQ(client_->call<calls::gpContextDestroy>(second), CUDA_SUCCESS);
    client_->context = codec::to_wire(context_);
    client_->send_bulk(codec::kTransferOfWorker | 1, 0, kMiB);
    EXPECT_TRUE(client_->alive() || client_->ended());
    if (client_->alive()) {
        EXPECT_TRUE(client_->call<calls::cuGraphExecDestroy>(executable).has_value());
        expect_refused("launch", launch(executable, stream));
    }
}

TEST_F(HostileGraphs, LaunchOfAnotherContextsExecutableIsAnswered) {
    const CUcontext second = client_->make_another_context();
    ASSERT_NE(second, nullptr);
    const CUstream first_stream = client_->make_stream();
    client_->context = codec::to_wire(second);
    const CUgraph graph = make_graph();
    ASSERT_EQ(add_node(graph, host_function(1)), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    EXPECT_TRUE(launch(executable, first_stream).has_value()) << "any result will do";
    EXPECT_EQ(client_->call<calls::gpContextDestroy>(second), CUDA_SUCCESS);
    for (const std::uint64_t context : {codec::to_wire(second), std::uint64_t{0}, codec::to_wire(context_)}) {
        client_->context = context;
        EXPECT_TRUE(launch(executable, first_stream).has_value());
        CUgraphExec made = nullptr;
        EXPECT_TRUE(instantiate(graph, made).has_value());
        EXPECT_TRUE(add_node(graph, host_function(1)).has_value());
    }
    EXPECT_TRUE(client_->alive());
}

// The staging memory of client steps is bounded by what is in use, and is not kept for earlier versions.
TEST_F(HostileGraphs, RepeatedChangesTakeNoMemory) {
    const CUgraph graph = make_graph();
    const CUdeviceptr slab = client_->make_slab(64 * kMiB);
    CUgraphNode node = nullptr;
    ASSERT_EQ(add_node(graph, copy_from_host(host_memory_name(1), slab, 16 * kMiB), {}, &node), CUDA_SUCCESS);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    for (int i = 0; i < 1000; ++i) {
        CUgraphExecUpdateResultInfo information{};
        ASSERT_EQ(client_->call<calls::cuGraphExecUpdate_v2>(executable, graph, &information), CUDA_SUCCESS) << i;
    }
    for (std::size_t i = 1; i < 1000; ++i) {
        const GraphNode larger = copy_from_host(host_memory_name(1), slab, 16 * kMiB + i * 4096);
        ASSERT_EQ(client_->call<calls::gpGraphNodeSetParams>(
                      executable, node, &larger, static_cast<const unsigned char*>(nullptr), std::size_t{0}),
                  CUDA_SUCCESS)
            << i;
    }
    expect_bounded(512 * kMiB);
}

// The client does not wait for most additions of nodes. A refused one makes every use of the graph fail.
TEST_F(HostileGraphs, GraphWithARefusedNodeIsNotInstantiated) {
    const CUgraph graph = make_graph();
    const GraphNode wrong = typed(CU_GRAPH_NODE_TYPE_KERNEL);
    auto created = client_->mint<CUgraphNode>();
    unwaited([&] {
        client_->add<calls::gpGraphAddNode>(
            &created, graph, static_cast<const CUgraphNode*>(nullptr), static_cast<const CUgraphEdgeData*>(nullptr),
            std::size_t{0}, std::size_t{0}, &wrong, static_cast<const unsigned char*>(nullptr), std::size_t{0});
    });
    CUgraphExec executable = nullptr;
    auto clone = client_->mint<CUgraph>();
    expect_refused("instantiated", instantiate(graph, executable));
    expect_refused("cloned", client_->call<calls::cuGraphClone>(&clone, graph));
    expect_refused("within another", add_child(make_graph(), graph));
    EXPECT_EQ(client_->call<calls::cuGraphDestroy>(graph), CUDA_SUCCESS);
    EXPECT_EQ(instantiate(make_graph(), executable), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

// The client does not wait for most changes of nodes. A refused one makes the graph unusable until a later change of
// the node succeeds.
TEST_F(HostileGraphs, GraphWithARefusedChangeIsNotInstantiated) {
    const CUgraph graph = make_graph();
    CUgraphNode node = nullptr;
    ASSERT_EQ(add_node(graph, host_function(1), {}, &node), CUDA_SUCCESS);
    change_unwaited(nullptr, node, typed(CU_GRAPH_NODE_TYPE_KERNEL));
    CUgraphExec executable = nullptr;
    expect_refused("instantiated", instantiate(graph, executable));
    EXPECT_EQ(change(nullptr, node, host_function(2)), CUDA_SUCCESS);
    EXPECT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    change_unwaited(nullptr, node, typed(CU_GRAPH_NODE_TYPE_KERNEL));
    expect_refused("instantiated again", instantiate(graph, executable));
    EXPECT_EQ(client_->call<calls::cuGraphDestroyNode>(node), CUDA_SUCCESS);
    EXPECT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
}

TEST_F(HostileGraphs, ExecutableWithARefusedChangeIsNotLaunched) {
    const CUgraph graph = make_graph();
    const CUstream stream = client_->make_stream();
    CUgraphNode node = nullptr;
    CUgraphExec executable = nullptr;
    ASSERT_EQ(add_node(graph, typed(CU_GRAPH_NODE_TYPE_EMPTY), {}, &node), CUDA_SUCCESS);
    ASSERT_EQ(instantiate(graph, executable), CUDA_SUCCESS);
    EXPECT_EQ(launch(executable, stream), CUDA_SUCCESS);
    change_unwaited(executable, node, typed(CU_GRAPH_NODE_TYPE_KERNEL));
    expect_refused("launched", launch(executable, stream));
    CUgraphExecUpdateResultInfo information{};
    EXPECT_EQ(client_->call<calls::cuGraphExecUpdate_v2>(executable, graph, &information), CUDA_SUCCESS);
    EXPECT_EQ(launch(executable, stream), CUDA_SUCCESS);
    expect_refused("waited for", change(executable, node, typed(CU_GRAPH_NODE_TYPE_KERNEL)));
    EXPECT_EQ(launch(executable, stream), CUDA_SUCCESS)
        << "a waited-for failure was returned, so it does not count again";
}

TEST_F(HostileGraphs, DotTextIsReadWithinItsBounds) {
    unsigned char data[64];
    expect_refused("none", client_->call<calls::gpGraphDotRead>(std::size_t{0}, data, std::size_t{64}));
    const CUgraph graph = make_graph();
    std::size_t bytes = 0;
    ASSERT_EQ(client_->call<calls::gpGraphDot>(graph, 0u, &bytes), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpGraphDotRead>(std::size_t{0}, data, std::size_t{16}), CUDA_SUCCESS);
    for (const std::size_t offset : {std::size_t{1} << 20, ~std::size_t{0}, ~std::size_t{0} - 63}) {
        expect_refused("behind", client_->call<calls::gpGraphDotRead>(offset, data, std::size_t{64}));
    }
}

}  // namespace
}  // namespace gpupool::test
