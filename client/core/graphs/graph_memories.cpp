#include "client/core/graphs/graph_memories.h"

#include <unordered_set>
#include <utility>

namespace gpupool::client {

void GraphMemories::hold(const Nodes& nodes) {
    any_.store(true, std::memory_order_relaxed);
    for (const Node& node : nodes) {
        if (node.does == Does::allocates) {
            ++memories_[node.address].users;
        }
    }
}

std::vector<CUdeviceptr> GraphMemories::let_go(const Nodes& nodes) {
    std::vector<CUdeviceptr> gone;
    for (const Node& node : nodes) {
        const auto it = memories_.find(node.address);
        if (node.does != Does::allocates || it == memories_.end()) {
            continue;
        }
        if (--it->second.users == 0 && !it->second.allocated) {
            gone.push_back(node.address);
            memories_.erase(it);
        }
    }
    return gone;
}

bool GraphMemories::is_allocated(CUdeviceptr address) const {
    const auto it = memories_.find(address);
    return it != memories_.end() && it->second.allocated;
}

void GraphMemories::add(CUgraph graph, CUdeviceptr address, Does does) {
    const Lock lock(mutex_);
    hold({{address, does}});
    graphs_[graph].push_back({address, does});
}

void GraphMemories::add_captured(std::uint64_t capture, CUdeviceptr address, Does does) {
    const Lock lock(mutex_);
    hold({{address, does}});
    captures_[capture].push_back({address, does});
}

std::vector<CUdeviceptr> GraphMemories::end_capture(std::uint64_t capture, CUgraph graph) {
    const Lock lock(mutex_);
    const auto it = captures_.find(capture);
    if (it == captures_.end()) {
        return {};
    }
    const Nodes nodes = std::move(it->second);
    captures_.erase(it);
    if (graph == nullptr) {
        return let_go(nodes);
    }
    Nodes& of_graph = graphs_[graph];
    of_graph.insert(of_graph.end(), nodes.begin(), nodes.end());
    return {};
}

void GraphMemories::move(CUgraph moved, CUgraph graph) {
    const Lock lock(mutex_);
    const auto it = graphs_.find(moved);
    if (it == graphs_.end()) {
        return;
    }
    const Nodes nodes = std::move(it->second);
    graphs_.erase(it);
    Nodes& to = graphs_[graph];
    to.insert(to.end(), nodes.begin(), nodes.end());
}

void GraphMemories::instantiate(CUgraphExec executable, CUgraph graph, bool frees_first) {
    if (!any_.load(std::memory_order_relaxed)) {
        return;
    }
    const Lock lock(mutex_);
    const auto it = graphs_.find(graph);
    if (it != graphs_.end()) {
        hold(it->second);
        executables_[executable] = {it->second, frees_first};
    }
}

std::vector<CUdeviceptr> GraphMemories::destroy(CUgraph graph) {
    if (!any_.load(std::memory_order_relaxed)) {
        return {};
    }
    const Lock lock(mutex_);
    const auto it = graphs_.find(graph);
    if (it == graphs_.end()) {
        return {};
    }
    const Nodes nodes = std::move(it->second);
    graphs_.erase(it);
    return let_go(nodes);
}

std::vector<CUdeviceptr> GraphMemories::destroy(CUgraphExec executable) {
    if (!any_.load(std::memory_order_relaxed)) {
        return {};
    }
    const Lock lock(mutex_);
    const auto it = executables_.find(executable);
    if (it == executables_.end()) {
        return {};
    }
    const Nodes nodes = std::move(it->second.nodes);
    executables_.erase(it);
    return let_go(nodes);
}

CUresult GraphMemories::check_launch(const Executable& executable) const {
    std::unordered_set<CUdeviceptr> own;
    for (const Node& node : executable.nodes) {
        if (node.does == Does::allocates) {
            own.insert(node.address);
            if (!executable.frees_first && is_allocated(node.address)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
    }
    for (const Node& node : executable.nodes) {
        if (node.does == Does::frees && !own.contains(node.address) && !is_allocated(node.address)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult GraphMemories::launch(CUgraphExec executable, std::vector<Change>& changes) {
    if (!any_.load(std::memory_order_relaxed)) {
        return CUDA_SUCCESS;
    }
    const Lock lock(mutex_);
    const auto it = executables_.find(executable);
    if (it == executables_.end()) {
        return CUDA_SUCCESS;
    }
    if (const CUresult result = check_launch(it->second); result != CUDA_SUCCESS) {
        return result;
    }
    for (const Does does : {Does::allocates, Does::frees}) {  // memory of both kinds of nodes is free afterwards
        for (const Node& node : it->second.nodes) {
            const auto memory = memories_.find(node.address);
            if (node.does == does && memory != memories_.end()) {
                memory->second.allocated = does == Does::allocates;
                changes.push_back({node.address, memory->second.allocated});
            }
        }
    }
    return CUDA_SUCCESS;
}

GraphMemories::Freed GraphMemories::free(CUdeviceptr address) {
    const Lock lock(mutex_);
    const auto it = memories_.find(address);
    if (it == memories_.end() || !it->second.allocated) {
        return Freed::no;
    }
    it->second.allocated = false;
    if (it->second.users != 0) {
        return Freed::yes;
    }
    memories_.erase(it);
    return Freed::last;
}

}  // namespace gpupool::client
