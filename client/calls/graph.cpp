// Graphs as a whole: shape, instantiation, launches, updates. For single nodes see graph_nodes.cpp.

#include <cstdio>

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

constexpr std::size_t kMaxNodesAsked = 8192;  // the most that fits into one reply

// Queries return a count, or as many nodes as the arrays hold (the driver clears the rest of the arrays). `ask`
// receives the count to fill in. If the arrays are larger than one reply, asks for the count first, and refuses a graph
// that does not fit one reply.
template <class Ask>
CUresult ask_for_nodes(std::size_t* count, bool arrays, Ask ask) {
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t room = arrays ? *count : 0;
    if (room > kMaxNodesAsked) {
        std::size_t there = 0;
        if (const CUresult result = ask(&there, false); result != CUDA_SUCCESS) {
            return result;
        }
        if (there > kMaxNodesAsked) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        room = there;
    }
    const std::size_t asked = room;
    const CUresult result = ask(&room, arrays);
    if (result == CUDA_SUCCESS) {
        *count = arrays ? std::min(room, asked) : room;  // never more than was written, even if a faulty server says so
    }
    return result;
}

// Converts a number from the server; unknown ones, which an application could not handle, become an error.
CUgraphInstantiateResult instantiate_result(int number) {
    const bool known =
        number >= CUDA_GRAPH_INSTANTIATE_SUCCESS && number <= CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    return known ? static_cast<CUgraphInstantiateResult>(number) : CUDA_GRAPH_INSTANTIATE_ERROR;
}

CUresult instantiate(CUgraphExec* executable, CUgraph graph, std::uint64_t flags, CUgraphNode* error_node,
                     int* outcome) {
    if (executable == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExec made = nullptr;
    CUgraphNode node = nullptr;
    int kind = 0;
    const CUresult result =
        make_with_reclaim([&] { return remote<calls::gpGraphInstantiate>(&made, graph, flags, &node, &kind); });
    if (error_node != nullptr) {
        *error_node = node;
    }
    if (outcome != nullptr) {
        *outcome = kind;
    }
    if (result == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        // Kernels launch it by the driver's handle, so the program gets that.
        std::uint64_t on_device = 0;
        if (const CUresult named = remote<calls::gpGraphExecOnDevice>(made, &on_device); named != CUDA_SUCCESS) {
            (void)remote<calls::cuGraphExecDestroy>(made);
            return named;
        }
        made = codec::from_wire<CUgraphExec>(on_device);
    }
    if (result == CUDA_SUCCESS) {
        this_session().graphs.add_executable(made, graph);
        int needed = 1;
        if (this_session().agreement.has(calls::gpGraphNeedsRoom::kOpcode) &&
            remote<calls::gpGraphNeedsRoom>(made, &needed) == CUDA_SUCCESS) {
            this_session().graphs.note_needs_room(made, needed != 0);
        }
        if (this_session().user_objects.instantiate(made, graph)) {
            (void)remote<calls::gpGraphExecWatch>(made, std::uint64_t{0});
        }
        this_session().graph_memories.instantiate(made, graph,
                                                  (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0);
        *executable = made;
    }
    return result;
}

CUresult instantiate_with_log(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log,
                              std::size_t bytes) {
    if (log != nullptr && bytes != 0) {
        log[0] = '\0';
    }
    return instantiate(executable, graph, 0, error_node, nullptr);
}

bool has_data(const CUgraphEdgeData& edge) {
    return edge.from_port != 0 || edge.to_port != 0 || edge.type != 0;
}

// For the older calls, which do not return edge data: fails if there is any.
template <class Ask>
CUresult ask_without_data(std::size_t* count, bool arrays, Ask ask) {
    if (!arrays || count == nullptr) {
        return ask(static_cast<CUgraphEdgeData*>(nullptr));
    }
    std::vector<CUgraphEdgeData> data(std::min(*count, kMaxNodesAsked));
    const CUresult result = ask(data.data());
    if (result == CUDA_SUCCESS) {
        for (std::size_t i = 0; i < std::min(*count, data.size()); ++i) {
            if (has_data(data[i])) {
                return CUDA_ERROR_LOSSY_QUERY;
            }
        }
    }
    return result;
}

}  // namespace

// ---- creating and destroying; without waiting for the driver if it surely succeeds

CUresult cuGraphCreate(CUgraph* phGraph, unsigned flags) {
    const WaitForReplies where_refused(phGraph == nullptr || flags != 0);
    const CUresult result = remote<calls::cuGraphCreate>(phGraph, flags);
    if (result == CUDA_SUCCESS && phGraph != nullptr) {
        this_session().graphs.add(*phGraph);
    }
    return result;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    const WaitForReplies where_unknown(!s->graphs.remove(hGraph));
    s->node_storages.remove(hGraph);
    forget_graph_memory(*s, s->graph_memories.destroy(hGraph));
    result = remote<calls::cuGraphDestroy>(hGraph);
    if (result == CUDA_SUCCESS) {
        UserObjects::Destructors due;
        s->user_objects.destroy(hGraph, due);
        run(due);
    }
    return result;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
    const CUresult result = remote<calls::cuGraphClone>(phGraphClone, originalGraph);
    if (result == CUDA_SUCCESS) {
        this_session().user_objects.clone(originalGraph, *phGraphClone);
    }
    return result;
}

// ---- shape

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, std::size_t* numNodes) {
    return ask_for_nodes(numNodes, nodes != nullptr, [&](std::size_t* count, bool arrays) {
        return remote<calls::cuGraphGetNodes>(hGraph, arrays ? nodes : nullptr, count);
    });
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, std::size_t* numRootNodes) {
    return ask_for_nodes(numRootNodes, rootNodes != nullptr, [&](std::size_t* count, bool arrays) {
        return remote<calls::cuGraphGetRootNodes>(hGraph, arrays ? rootNodes : nullptr, count);
    });
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, std::size_t* numEdges) {
    return ask_without_data(numEdges, from != nullptr && to != nullptr, [&](CUgraphEdgeData* data) {
        return entry::cuGraphGetEdges_v2(hGraph, from, to, data, numEdges);
    });
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edgeData,
                            std::size_t* numEdges) {
    if ((from == nullptr) != (to == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return ask_for_nodes(numEdges, from != nullptr, [&](std::size_t* count, bool arrays) {
        return remote<calls::cuGraphGetEdges_v2>(hGraph, arrays ? from : nullptr, arrays ? to : nullptr,
                                                 arrays ? edgeData : nullptr, count);
    });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies, std::size_t* numDependencies) {
    return ask_without_data(numDependencies, dependencies != nullptr, [&](CUgraphEdgeData* data) {
        return entry::cuGraphNodeGetDependencies_v2(hNode, dependencies, data, numDependencies);
    });
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies, CUgraphEdgeData* edgeData,
                                       std::size_t* numDependencies) {
    return ask_for_nodes(numDependencies, dependencies != nullptr, [&](std::size_t* count, bool arrays) {
        return remote<calls::cuGraphNodeGetDependencies_v2>(hNode, arrays ? dependencies : nullptr,
                                                            arrays ? edgeData : nullptr, count);
    });
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes, std::size_t* numDependentNodes) {
    return ask_without_data(numDependentNodes, dependentNodes != nullptr, [&](CUgraphEdgeData* data) {
        return entry::cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, data, numDependentNodes);
    });
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes, CUgraphEdgeData* edgeData,
                                         std::size_t* numDependentNodes) {
    return ask_for_nodes(numDependentNodes, dependentNodes != nullptr, [&](std::size_t* count, bool arrays) {
        return remote<calls::cuGraphNodeGetDependentNodes_v2>(hNode, arrays ? dependentNodes : nullptr,
                                                              arrays ? edgeData : nullptr, count);
    });
}

// ---- instantiation

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                            std::size_t bufferSize) {
    return instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                               std::size_t bufferSize) {
    return instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
    return (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0
               ? CUDA_ERROR_INVALID_VALUE  // there is no stream to upload in
               : instantiate(phGraphExec, hGraph, flags, nullptr, nullptr);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
    if (instantiateParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool upload = (instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    int outcome = 0;
    CUresult result =
        instantiate(phGraphExec, hGraph, instantiateParams->flags & ~std::uint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD},
                    &instantiateParams->hErrNode_out, &outcome);
    instantiateParams->result_out = instantiate_result(outcome);
    if (result == CUDA_SUCCESS && upload) {
        result = remote<calls::cuGraphUpload>(*phGraphExec, instantiateParams->hUploadStream);
    }
    return result;
}

// ---- launching, updating

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
    Session& s = this_session();
    if (!s.graphs.remove_executable(hGraphExec)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    forget_graph_memory(s, s.graph_memories.destroy(hGraphExec));
    UserObjects::Destructors due;
    const std::uint64_t number = s.user_objects.destroy(hGraphExec, due);
    if (number != 0) {
        (void)remote<calls::gpGraphExecWatch>(hGraphExec, s.host_functions.submit([&s, number](CUresult) {
            UserObjects::Destructors late;
            s.user_objects.finish(number, late);
            run(late);
        }));
    }
    const CUresult result = remote<calls::cuGraphExecDestroy>(hGraphExec);
    run(due);
    return result;
}

namespace {

CUresult check_executable(CUgraphExec executable, CUstream stream) {
    StreamInfo info;
    if (const CUresult result = find_stream(stream, info); result != CUDA_SUCCESS) {
        return result;
    }
    if (!this_session().graphs.has_executable(executable)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Captures& captures = this_session().captures;
    return captures.any() ? captures.refuse_if_capturing(stream_key(stream)) : CUDA_SUCCESS;
}

// Asks the server whether the graph fits. The launch itself is sent without waiting for its result.
CUresult reserve_room(Session& s, CUgraphExec executable, CUstream stream) {
    if (!s.graphs.needs_room(executable) || !s.agreement.has(calls::gpGraphReserve::kOpcode)) {
        return CUDA_SUCCESS;
    }
    int needed = 1;
    const CUresult result = remote<calls::gpGraphReserve>(executable, stream, &needed);
    if (result == CUDA_SUCCESS) {
        s.graphs.note_needs_room(executable, needed != 0);
    }
    return result;
}

}  // namespace

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
    const CUresult result = check_executable(hGraphExec, hStream);
    return result != CUDA_SUCCESS ? result : remote<calls::cuGraphUpload>(hGraphExec, hStream);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    if (const CUresult result = check_executable(hGraphExec, hStream); result != CUDA_SUCCESS) {
        return result;
    }
    Session& s = this_session();
    GraphMemories::Changes changes;
    if (const CUresult result = s.graph_memories.launch(hGraphExec, changes); result != CUDA_SUCCESS) {
        return result;
    }
    if (const CUresult result = reserve_room(s, hGraphExec, hStream); result != CUDA_SUCCESS) {
        (void)s.graph_memories.undo(changes);
        return result;
    }
    s.user_objects.launch(hGraphExec);
    s.apply(changes);
    const CUresult result = remote<calls::cuGraphLaunch>(hGraphExec, hStream);
    if (!changes.empty()) {
        s.apply(result == CUDA_SUCCESS ? s.graph_memories.sent(this_thread().last_command, changes)
                                       : s.graph_memories.undo(changes));
    }
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo* resultInfo) {
    const CUresult result = remote<calls::cuGraphExecUpdate_v2>(hGraphExec, hGraph, resultInfo);
    if (result != kSessionLost) {
        this_session().graphs.note_updated(hGraphExec);
    }
    if (result == CUDA_SUCCESS) {
        UserObjects::Destructors due;
        if (this_session().user_objects.update(hGraphExec, hGraph, due)) {
            (void)remote<calls::gpGraphExecWatch>(hGraphExec, std::uint64_t{0});
        }
        run(due);
    }
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
    CUgraphExecUpdateResultInfo information{};
    const CUresult result = entry::cuGraphExecUpdate_v2(hGraphExec, hGraph, &information);
    if (hErrorNode_out != nullptr) {
        *hErrorNode_out = information.errorNode;
    }
    if (updateResult_out != nullptr) {
        *updateResult_out = information.result;
    }
    return result;
}

// The client writes the file: the application means a path on its own machine.
CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned flags) {
    if (path == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr std::size_t kMaxText = 256u << 20;  // the server's own limit
    std::size_t bytes = 0;
    CUresult result = remote<calls::gpGraphDot>(hGraph, flags, &bytes);
    if (result == CUDA_SUCCESS && bytes > kMaxText) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::vector<unsigned char> part(128u << 10);
    std::FILE* const file = result == CUDA_SUCCESS ? std::fopen(path, "w") : nullptr;
    if (file == nullptr) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (std::size_t offset = 0; offset < bytes && result == CUDA_SUCCESS; offset += part.size()) {
        const std::size_t count = std::min(part.size(), bytes - offset);
        result = remote<calls::gpGraphDotRead>(offset, part.data(), count);
        if (result == CUDA_SUCCESS && std::fwrite(part.data(), 1, count, file) != count) {
            result = CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    return std::fclose(file) == 0 ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace gpupool::client::entry
