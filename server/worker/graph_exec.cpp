#include "server/worker/graph_exec.h"

#include <algorithm>
#include <cstring>

#include "protocol/codec/handles.h"
#include "server/worker/copy_pieces.h"
#include "server/worker/graph_params.h"

namespace gpupool::worker {
namespace {

// Pinned memory that all graphs of the session may take together.
constexpr std::uint64_t kMaxPinnedBytes = 4ull << 30;
constexpr std::size_t kWordsBytes = 128;  // request and done, a cache line each
std::atomic<std::uint64_t> pinned_bytes{0};

struct Nodes {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraphEdgeData> edges;
};

// `ask(nodes, edges, count)`, first for the count.
template <class Ask>
CUresult collect(Nodes& out, Ask ask) {
    std::size_t count = 0;
    CUresult result = ask(static_cast<CUgraphNode*>(nullptr), static_cast<CUgraphEdgeData*>(nullptr), &count);
    out.nodes.resize(count);
    out.edges.resize(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = ask(out.nodes.data(), out.edges.data(), &count);
    }
    return result;
}

CUresult nodes_of(const driver::Api& api, CUgraph graph, Nodes& out) {
    return collect(out, [&](CUgraphNode* nodes, CUgraphEdgeData*, std::size_t* count) {
        return driver::call(api.cuGraphGetNodes, graph, nodes, count);
    });
}

CUresult dependencies_of(const driver::Api& api, CUgraphNode node, Nodes& out) {
    return collect(out, [&](CUgraphNode* nodes, CUgraphEdgeData* edges, std::size_t* count) {
        return driver::call(api.cuGraphNodeGetDependencies_v2, node, nodes, edges, count);
    });
}

CUresult dependents_of(const driver::Api& api, CUgraphNode node, Nodes& out) {
    return collect(out, [&](CUgraphNode* nodes, CUgraphEdgeData* edges, std::size_t* count) {
        return driver::call(api.cuGraphNodeGetDependentNodes_v2, node, nodes, edges, count);
    });
}

// The edges from or to `node` go from or to `other` instead.
CUresult move_dependencies(const driver::Api& api, CUgraph graph, CUgraphNode node, CUgraphNode other) {
    Nodes before;
    CUresult result = dependencies_of(api, node, before);
    for (std::size_t i = 0; i < before.nodes.size() && result == CUDA_SUCCESS; ++i) {
        result = driver::call(api.cuGraphRemoveDependencies_v2, graph, &before.nodes[i], &node, &before.edges[i],
                              std::size_t{1});
        if (result == CUDA_SUCCESS) {
            // Whatever the edge said of kernels, a memory operation waits for all of what is before it.
            result = driver::call(api.cuGraphAddDependencies_v2, graph, &before.nodes[i], &other,
                                  static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
        }
    }
    return result;
}

CUresult move_dependents(const driver::Api& api, CUgraph graph, CUgraphNode node, CUgraphNode other) {
    Nodes after;
    CUresult result = dependents_of(api, node, after);
    for (std::size_t i = 0; i < after.nodes.size() && result == CUDA_SUCCESS; ++i) {
        result = driver::call(api.cuGraphRemoveDependencies_v2, graph, &node, &after.nodes[i], &after.edges[i],
                              std::size_t{1});
        if (result == CUDA_SUCCESS) {
            result = driver::call(api.cuGraphAddDependencies_v2, graph, &other, &after.nodes[i],
                                  static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
        }
    }
    return result;
}

bool is_host(CUmemorytype type) {
    return type == CU_MEMORYTYPE_HOST;
}

CUresult type_of(const driver::Api& api, CUgraphNode node, CUgraphNodeType& type) {
    return driver::call(api.cuGraphNodeGetType, node, &type);
}

// Has the graph, or one within it, anything that the client must do?
CUresult needs_client(const driver::Api& api, CUgraph graph, bool& needs) {
    Nodes all;
    CUresult result = nodes_of(api, graph, all);
    for (std::size_t i = 0; i < all.nodes.size() && result == CUDA_SUCCESS && !needs; ++i) {
        CUgraphNodeType type{};
        result = type_of(api, all.nodes[i], type);
        if (result != CUDA_SUCCESS) {
            break;
        }
        if (type == CU_GRAPH_NODE_TYPE_HOST) {
            needs = true;
        } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            CUDA_MEMCPY3D copy{};
            result = driver::call(api.cuGraphMemcpyNodeGetParams, all.nodes[i], &copy);
            needs = is_host(copy.srcMemoryType) || is_host(copy.dstMemoryType);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUgraph child = nullptr;
            result = driver::call(api.cuGraphChildGraphNodeGetGraph, all.nodes[i], &child);
            result = result == CUDA_SUCCESS ? needs_client(api, child, needs) : result;
        }
    }
    return result;
}

// Nodes, those of graphs within it included.
std::uint32_t count_nodes(const driver::Api& api, CUgraph graph) {
    Nodes all;
    if (nodes_of(api, graph, all) != CUDA_SUCCESS) {
        return 1;
    }
    auto count = static_cast<std::uint32_t>(all.nodes.size());
    for (const CUgraphNode node : all.nodes) {
        CUgraphNodeType type{};
        CUgraph child = nullptr;
        if (type_of(api, node, type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH &&
            driver::call(api.cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS) {
            count += count_nodes(api, child);
        }
    }
    return count;
}

codec::GraphCopyNotice rows_of(const CUDA_MEMCPY3D& copy, bool from_client) {
    codec::GraphCopyNotice rows{};
    rows.memory = host_memory_number(codec::to_wire(from_client ? copy.srcHost : copy.dstHost));
    rows.x_bytes = from_client ? copy.srcXInBytes : copy.dstXInBytes;
    rows.y = from_client ? copy.srcY : copy.dstY;
    rows.z = from_client ? copy.srcZ : copy.dstZ;
    rows.pitch_bytes = from_client ? copy.srcPitch : copy.dstPitch;
    rows.height = from_client ? copy.srcHeight : copy.dstHeight;
    if (rows.pitch_bytes == 0) {
        rows.pitch_bytes = rows.x_bytes + copy.WidthInBytes;
    }
    if (rows.height == 0) {
        rows.height = rows.y + copy.Height;
    }
    rows.width_bytes = copy.WidthInBytes;
    rows.rows = copy.Height;
    rows.slices = copy.Depth;
    return rows;
}

// Memory operations of a turn: say that it has come, wait until it is over, be ready for the next.
struct TurnOperations {
    CUstreamBatchMemOpParams list[3];
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};

    TurnOperations(const HostTurn& turn, CUcontext context) {
        std::memset(static_cast<void*>(list), 0, sizeof list);
        list[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        list[0].writeValue.address = turn.device_request;
        list[0].writeValue.value = 1;
        list[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        list[1].waitValue.address = turn.device_done;
        list[1].waitValue.value = 1;
        list[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
        list[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        list[2].writeValue.address = turn.device_done;
        list[2].writeValue.value = 0;
        parameters.ctx = context;
        parameters.count = 3;
        parameters.paramArray = list;
    }
    TurnOperations(const TurnOperations&) = delete;
    TurnOperations& operator=(const TurnOperations&) = delete;
};

CUcontext current_context(const driver::Api& api) {
    CUcontext context = nullptr;
    driver::call(api.cuCtxGetCurrent, &context);
    return context;
}

}  // namespace

GraphExec::~GraphExec() {
    if (executable_ != nullptr) {
        driver::call(api_.cuGraphExecDestroy, executable_);
    }
    release(now_);
    for (Expansion& expansion : before_) {
        release(expansion);
    }
}

void GraphExec::release(Expansion& expansion) const {
    for (void* memory : expansion.pinned) {
        driver::call(api_.cuMemFreeHost, memory);
    }
    for (const auto& turn : expansion.turns) {
        pinned_bytes -= turn->bytes;
    }
    if (expansion.clone != nullptr) {
        driver::call(api_.cuGraphDestroy, expansion.clone);
    }
    expansion = {};
}

CUresult GraphExec::add_turn(HostTurn::Kind kind, CUgraphNode named, Expansion& out, HostTurn*& turn) const {
    void* words = nullptr;
    CUresult result = driver::call(api_.cuMemHostAlloc, &words, kWordsBytes,
                                   static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    out.pinned.push_back(words);
    std::memset(words, 0, kWordsBytes);
    CUdeviceptr device_words = 0;
    result = driver::call(api_.cuMemHostGetDevicePointer_v2, &device_words, words, 0u);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    out.turns.push_back(std::make_unique<HostTurn>());
    turn = out.turns.back().get();
    turn->kind = kind;
    turn->request = static_cast<std::uint32_t*>(words);
    turn->done = turn->request + kWordsBytes / 2 / sizeof(std::uint32_t);
    turn->device_request = device_words;
    turn->device_done = device_words + kWordsBytes / 2;
    if (named != nullptr) {
        out.by_node.emplace(named, turn);
    }
    return CUDA_SUCCESS;
}

// The client's side of `copy` becomes pinned memory of the turn, packed.
CUresult GraphExec::stage(CUDA_MEMCPY3D& copy, HostTurn& turn, Expansion& out) const {
    const bool from_client = turn.kind == HostTurn::Kind::from_client;
    std::uint64_t bytes = 0;
    if (!packed_bytes(copy, bytes) ||
        !is_host_memory_name(codec::to_wire(from_client ? copy.srcHost : copy.dstHost))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > turn.bytes || turn.staging == nullptr) {
        const std::uint64_t more = bytes - turn.bytes;
        if (pinned_bytes.fetch_add(more) + more > kMaxPinnedBytes) {
            pinned_bytes -= more;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        void* memory = nullptr;
        const CUresult result = driver::call(api_.cuMemHostAlloc, &memory, std::max<std::size_t>(bytes, 1),
                                             static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE));
        if (result != CUDA_SUCCESS) {
            pinned_bytes -= more;
            return result;
        }
        out.pinned.push_back(memory);
        turn.staging = static_cast<std::byte*>(memory);
        turn.bytes = bytes;
    }
    turn.rows = rows_of(copy, from_client);
    const Piece all{0, bytes, 0, 0, 0, copy.WidthInBytes, copy.Height, copy.Depth};
    copy = from_client ? part_from_host(copy, all, turn.staging) : part_to_host(copy, all, turn.staging);
    return CUDA_SUCCESS;
}

CUresult GraphExec::replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named, Expansion& out) const {
    CUDA_HOST_NODE_PARAMS function{};
    CUresult result = driver::call(api_.cuGraphHostNodeGetParams, node, &function);
    HostTurn* turn = nullptr;
    result = result == CUDA_SUCCESS ? add_turn(HostTurn::Kind::function, named, out, turn) : result;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    turn->function = codec::to_wire(function.userData);
    const TurnOperations operations(*turn, current_context(api_));
    CUgraphNode stand_in = nullptr;
    result = driver::call(api_.cuGraphAddBatchMemOpNode, &stand_in, clone, static_cast<const CUgraphNode*>(nullptr),
                          std::size_t{0}, &operations.parameters);
    result = result == CUDA_SUCCESS ? move_dependencies(api_, clone, node, stand_in) : result;
    result = result == CUDA_SUCCESS ? move_dependents(api_, clone, node, stand_in) : result;
    return result == CUDA_SUCCESS ? driver::call(api_.cuGraphDestroyNode, node) : result;
}

CUresult GraphExec::route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named, Expansion& out) const {
    CUDA_MEMCPY3D copy{};
    CUresult result = driver::call(api_.cuGraphMemcpyNodeGetParams, node, &copy);
    const bool from_client = is_host(copy.srcMemoryType), to_client = is_host(copy.dstMemoryType);
    if (result != CUDA_SUCCESS || (!from_client && !to_client)) {
        return result;
    }
    const CUcontext context = current_context(api_);
    const auto add = [&](HostTurn::Kind kind, CUgraphNode& added) {
        HostTurn* turn = nullptr;
        CUresult r = add_turn(kind, named, out, turn);
        r = r == CUDA_SUCCESS ? stage(copy, *turn, out) : r;
        if (r == CUDA_SUCCESS) {
            const TurnOperations operations(*turn, context);
            r = driver::call(api_.cuGraphAddBatchMemOpNode, &added, clone, static_cast<const CUgraphNode*>(nullptr),
                             std::size_t{0}, &operations.parameters);
        }
        return r;
    };
    const auto connect = [&](const CUgraphNode& from, const CUgraphNode& to) {
        return driver::call(api_.cuGraphAddDependencies_v2, clone, &from, &to,
                            static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
    };
    CUgraphNode turn = nullptr;
    if (from_client) {
        result = add(HostTurn::Kind::from_client, turn);
        result = result == CUDA_SUCCESS ? move_dependencies(api_, clone, node, turn) : result;
        result = result == CUDA_SUCCESS ? connect(turn, node) : result;
    }
    if (result == CUDA_SUCCESS && to_client) {
        result = add(HostTurn::Kind::to_client, turn);
        result = result == CUDA_SUCCESS ? move_dependents(api_, clone, node, turn) : result;
        result = result == CUDA_SUCCESS ? connect(node, turn) : result;
    }
    return result == CUDA_SUCCESS ? driver::call(api_.cuGraphMemcpyNodeSetParams, node,
                                                 static_cast<const CUDA_MEMCPY3D*>(&copy))
                                  : result;
}

CUresult GraphExec::expand_nodes(CUgraph clone, CUgraph original, Expansion& out) const {
    Nodes all;
    CUresult result = nodes_of(api_, original != nullptr ? original : clone, all);
    for (std::size_t i = 0; i < all.nodes.size() && result == CUDA_SUCCESS; ++i) {
        CUgraphNode node = all.nodes[i];
        CUgraphNode named = nullptr;
        if (original != nullptr) {
            named = node;
            result = driver::call(api_.cuGraphNodeFindInClone, &node, named, clone);
        }
        CUgraphNodeType type{};
        result = result == CUDA_SUCCESS ? type_of(api_, node, type) : result;
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (type == CU_GRAPH_NODE_TYPE_HOST) {
            result = replace_function(clone, node, named, out);
        } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            result = route_copy(clone, node, named, out);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUgraph child = nullptr;
            result = driver::call(api_.cuGraphChildGraphNodeGetGraph, node, &child);
            result = result == CUDA_SUCCESS ? expand_nodes(child, nullptr, out) : result;
        }
    }
    return result;
}

CUresult GraphExec::expand(CUgraph graph, Expansion& out) const {
    bool needs = false;
    CUresult result = needs_client(api_, graph, needs);
    if (result != CUDA_SUCCESS || !needs) {
        return result;
    }
    result = driver::call(api_.cuGraphClone, &out.clone, graph);
    result = result == CUDA_SUCCESS ? expand_nodes(out.clone, graph, out) : result;
    if (result != CUDA_SUCCESS) {
        release(out);
    }
    return result;
}

// Which node of `graph` became `node` of the expansion; null when none did.
CUgraphNode GraphExec::original_of(CUgraph graph, const Expansion& of, CUgraphNode node) const {
    if (of.clone == nullptr || node == nullptr) {
        return node;
    }
    Nodes all;
    if (nodes_of(api_, graph, all) != CUDA_SUCCESS) {
        return nullptr;
    }
    for (const CUgraphNode candidate : all.nodes) {
        CUgraphNode cloned = nullptr;
        if (driver::call(api_.cuGraphNodeFindInClone, &cloned, candidate, of.clone) == CUDA_SUCCESS && cloned == node) {
            return candidate;
        }
    }
    return nullptr;
}

CUresult GraphExec::instantiate(CUgraph graph, std::uint64_t flags, CUgraphNode& error_node, int& outcome) {
    CUresult result = expand(graph, now_);
    if (result != CUDA_SUCCESS) {
        outcome = CUDA_GRAPH_INSTANTIATE_ERROR;
        return result;
    }
    cost_ = std::max(1u, count_nodes(api_, now_.clone != nullptr ? now_.clone : graph));
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
    parameters.flags = flags;
    result = driver::call(api_.cuGraphInstantiateWithParams, &executable_, now_.clone != nullptr ? now_.clone : graph,
                          &parameters);
    error_node = original_of(graph, now_, parameters.hErrNode_out);
    outcome = static_cast<int>(parameters.result_out);
    return result;
}

CUresult GraphExec::update(CUgraph graph, CUgraphExecUpdateResultInfo& information) {
    Expansion next;
    CUresult result = expand(graph, next);
    if (result != CUDA_SUCCESS) {
        information.result = CU_GRAPH_EXEC_UPDATE_ERROR;
        return result;
    }
    result = driver::call(api_.cuGraphExecUpdate_v2, executable_, next.clone != nullptr ? next.clone : graph,
                          &information);
    information.errorNode = original_of(graph, next, information.errorNode);
    information.errorFromNode = original_of(graph, next, information.errorFromNode);
    if (result != CUDA_SUCCESS) {
        release(next);
        return result;
    }
    // The nodes of the first graph go on naming what they named, if it is done in the same way.
    if (std::equal(now_.turns.begin(), now_.turns.end(), next.turns.begin(), next.turns.end(),
                   [](const auto& a, const auto& b) { return a->kind == b->kind; })) {
        for (const auto& [node, turn] : now_.by_node) {
            const auto place = std::find_if(now_.turns.begin(), now_.turns.end(),
                                            [turn = turn](const auto& one) { return one.get() == turn; });
            next.by_node.emplace(node, next.turns[static_cast<std::size_t>(place - now_.turns.begin())].get());
        }
    }
    // Launches that are under way use what was before.
    before_.push_back(std::move(now_));
    now_ = std::move(next);
    return result;
}

CUresult GraphExec::own_node(CUgraphNode node, CUgraphNode& own) const {
    // Updates change what the nodes do, not which they are.
    const CUgraph clone = before_.empty() ? now_.clone : before_.front().clone;
    own = node;
    return clone == nullptr ? CUDA_SUCCESS : driver::call(api_.cuGraphNodeFindInClone, &own, node, clone);
}

CUresult GraphExec::set(CUgraphNode node, CUgraphNodeParams& parameters) {
    const auto [first, last] = now_.by_node.equal_range(node);
    if (parameters.type == CU_GRAPH_NODE_TYPE_HOST) {
        if (first == last || first->second->kind != HostTurn::Kind::function) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        first->second->function = codec::to_wire(parameters.host.userData);
        return CUDA_SUCCESS;
    }
    if (parameters.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        CUDA_MEMCPY3D& copy = parameters.memcpy.copyParams;
        const bool from_client = is_host(copy.srcMemoryType), to_client = is_host(copy.dstMemoryType);
        const auto turns = static_cast<std::ptrdiff_t>(from_client) + static_cast<std::ptrdiff_t>(to_client);
        if (std::distance(first, last) != turns) {
            return CUDA_ERROR_INVALID_VALUE;  // other sides than it was instantiated with
        }
        for (auto it = first; it != last; ++it) {
            if ((it->second->kind == HostTurn::Kind::from_client && !from_client) ||
                (it->second->kind == HostTurn::Kind::to_client && !to_client)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            if (const CUresult result = stage(copy, *it->second, now_); result != CUDA_SUCCESS) {
                return result;
            }
        }
    }
    if (parameters.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        bool needs = false;
        const CUresult result = needs_client(api_, parameters.graph.graph, needs);
        if (result != CUDA_SUCCESS || needs) {
            return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    CUgraphNode own = nullptr;
    const CUresult result = own_node(node, own);
    return result != CUDA_SUCCESS ? result
                                  : driver::call(api_.cuGraphExecNodeSetParams, executable_, own, &parameters);
}

}  // namespace gpupool::worker
