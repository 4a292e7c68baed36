#include "client/core/graphs/user_objects.h"

#include <utility>

#include "client/core/dispatch/thread.h"

namespace gpupool::client {

void run(const UserObjects::Destructors& due) {
    if (due.empty()) {
        return;
    }
    const bool before = std::exchange(this_thread().in_host_function, true);
    for (const UserObjects::Destructor& destructor : due) {
        destructor.function(destructor.object);
    }
    this_thread().in_host_function = before;
}

void UserObjects::hold(const References& references) {
    for (const auto& [object, count] : references) {
        if (const auto it = objects_.find(object); it != objects_.end()) {
            it->second.references += count;
        }
    }
}

void UserObjects::let_go(CUuserObject object, std::int64_t count, Destructors& due) {
    const auto it = objects_.find(object);
    if (it == objects_.end()) {
        return;
    }
    it->second.references -= count;
    if (it->second.references == 0) {
        due.push_back(it->second.destructor);
        objects_.erase(it);
    }
}

void UserObjects::let_go(const References& references, Destructors& due) {
    for (const auto& [object, count] : references) {
        let_go(object, count, due);
    }
}

UserObjects::References UserObjects::of(CUgraph graph) const {
    References all;
    if (const auto it = graphs_.find(graph); it != graphs_.end()) {
        all = it->second;
    }
    for (const auto& [node, child] : children_) {
        if (child.parent == graph) {
            for (const auto& [object, count] : child.references) {
                all[object] += count;
            }
        }
    }
    return all;
}

void UserObjects::create(CUuserObject object, Destructor destructor, unsigned count) {
    any_.store(true, std::memory_order_relaxed);
    const Lock lock(mutex_);
    objects_[object] = {destructor, count};
}

CUresult UserObjects::retain(CUuserObject object, unsigned count) {
    const Lock lock(mutex_);
    const auto it = objects_.find(object);
    if (it == objects_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    it->second.references += count;
    return CUDA_SUCCESS;
}

CUresult UserObjects::release(CUuserObject object, unsigned count, Destructors& due) {
    const Lock lock(mutex_);
    if (!objects_.contains(object)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let_go(object, count, due);
    return CUDA_SUCCESS;
}

CUresult UserObjects::retain(CUgraph graph, CUuserObject object, unsigned count, bool moves) {
    const Lock lock(mutex_);
    const auto it = objects_.find(object);
    if (it == objects_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_[graph][object] += count;
    it->second.references += moves ? 0 : count;
    return CUDA_SUCCESS;
}

CUresult UserObjects::release(CUgraph graph, CUuserObject object, unsigned count, Destructors& due) {
    const Lock lock(mutex_);
    const auto it = graphs_.find(graph);
    if (it != graphs_.end() && it->second.contains(object)) {
        std::int64_t& own = it->second[object];
        own -= count;
        if (own <= 0) {
            it->second.erase(object);
        }
    }
    let_go(object, count, due);
    return CUDA_SUCCESS;
}

void UserObjects::clone(CUgraph graph, CUgraph clone) {
    if (none()) {
        return;
    }
    const Lock lock(mutex_);
    if (References all = of(graph); !all.empty()) {
        hold(all);
        graphs_[clone] = std::move(all);
    }
}

void UserObjects::add_child(CUgraph child, CUgraph parent, CUgraphNode node) {
    if (none()) {
        return;
    }
    const Lock lock(mutex_);
    if (References all = of(child); !all.empty()) {
        hold(all);
        children_[node] = {parent, std::move(all)};
    }
}

void UserObjects::destroy(CUgraph graph, Destructors& due) {
    if (none()) {
        return;
    }
    const Lock lock(mutex_);
    const References all = of(graph);
    graphs_.erase(graph);
    std::erase_if(children_, [graph](const auto& entry) { return entry.second.parent == graph; });
    let_go(all, due);
}

void UserObjects::destroy(CUgraphNode node, Destructors& due) {
    if (none()) {
        return;
    }
    const Lock lock(mutex_);
    if (const auto it = children_.find(node); it != children_.end()) {
        const References all = std::move(it->second.references);
        children_.erase(it);
        let_go(all, due);
    }
}

bool UserObjects::instantiate(CUgraphExec executable, CUgraph graph) {
    if (none()) {
        return false;
    }
    const Lock lock(mutex_);
    References all = of(graph);
    if (all.empty()) {
        return false;
    }
    hold(all);
    executables_[executable] = {std::move(all), false};
    return true;
}

void UserObjects::launch(CUgraphExec executable) {
    if (none()) {
        return;
    }
    const Lock lock(mutex_);
    if (const auto it = executables_.find(executable); it != executables_.end()) {
        it->second.launched = true;
    }
}

bool UserObjects::update(CUgraphExec executable, CUgraph graph, Destructors& due) {
    if (none()) {
        return false;
    }
    const Lock lock(mutex_);
    References all = of(graph);
    const auto it = executables_.find(executable);
    if (it == executables_.end()) {
        if (all.empty()) {
            return false;
        }
        hold(all);
        executables_[executable] = {std::move(all), true};  // it may have been launched
        return true;
    }
    hold(all);
    const References former = std::exchange(it->second.references, std::move(all));
    let_go(former, due);
    return false;
}

std::uint64_t UserObjects::destroy(CUgraphExec executable, Destructors& due) {
    if (none()) {
        return 0;
    }
    const Lock lock(mutex_);
    const auto it = executables_.find(executable);
    if (it == executables_.end()) {
        return 0;
    }
    const Executable had = std::move(it->second);
    executables_.erase(it);
    if (!had.launched) {
        let_go(had.references, due);
        return 0;
    }
    finishing_[next_] = had.references;
    return next_++;
}

void UserObjects::finish(std::uint64_t number, Destructors& due) {
    const Lock lock(mutex_);
    if (const auto it = finishing_.find(number); it != finishing_.end()) {
        const References all = std::move(it->second);
        finishing_.erase(it);
        let_go(all, due);
    }
}

}  // namespace gpupool::client
