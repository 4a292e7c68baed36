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

CUresult GraphMemories::launch(CUgraphExec executable, Changes& changes) {
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
    for (const Does does : {Does::allocates, Does::frees}) {  // memory that the graph allocates and frees is free
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

GraphMemories::Changes GraphMemories::undo_locked(const Changes& changes) {
    Changes undone;
    std::unordered_set<CUdeviceptr> seen;
    for (const Change& change : changes) {
        // A graph allocates memory that is free, or else frees memory that is allocated. So before its first change of
        // an address, the memory was in the opposite state.
        const auto memory = memories_.find(change.address);
        if (seen.insert(change.address).second && memory != memories_.end()) {
            memory->second.allocated = !change.allocated;
            undone.push_back({change.address, !change.allocated});
        }
    }
    return undone;
}

GraphMemories::Changes GraphMemories::undo(const Changes& changes) {
    const Lock lock(mutex_);
    return undo_locked(changes);
}

GraphMemories::Changes GraphMemories::sent(std::uint64_t command, const Changes& changes) {
    constexpr std::size_t kRemembered = 1024;
    const Lock lock(mutex_);
    if (failed_.erase(command) != 0) {
        return undo_locked(changes);
    }
    sent_.emplace(command, changes);
    if (sent_.size() > kRemembered) {
        sent_.erase(sent_.begin());
    }
    return {};
}

GraphMemories::Changes GraphMemories::failed(std::uint64_t command) {
    constexpr std::size_t kRemembered = 64;
    if (!any_.load(std::memory_order_relaxed)) {
        return {};
    }
    const Lock lock(mutex_);
    const auto it = sent_.find(command);
    if (it == sent_.end()) {
        failed_.insert(command);
        if (failed_.size() > kRemembered) {
            failed_.erase(failed_.begin());
        }
        return {};
    }
    const Changes changes = std::move(it->second);
    sent_.erase(it);
    return undo_locked(changes);
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

void GraphMemories::undo_free(CUdeviceptr address, Freed freed) {
    const Lock lock(mutex_);
    if (freed != Freed::no) {
        memories_[address].allocated = true;
    }
}

}  // namespace gpupool::client
