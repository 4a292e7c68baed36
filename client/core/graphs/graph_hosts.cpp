#include "client/core/graphs/graph_hosts.h"

#include "protocol/calls/graph_node.h"

namespace gpupool::client {
namespace {

template <class Names, class Key, class Value>
std::uint64_t name(Names& names, const Key& key, std::vector<Value>& values, const Value& value) {
    const auto it = names.find(key);
    if (it != names.end()) {
        return it->second;
    }
    if (values.size() + 1 >= kMaxHostMemoryNames) {
        return 0;
    }
    values.push_back(value);
    return names[key] = values.size();
}

template <class Value>
std::optional<Value> look_up(const std::vector<Value>& values, std::uint64_t name) {
    return name == 0 || name > values.size() ? std::nullopt : std::optional(values[name - 1]);
}

}  // namespace

std::uint64_t GraphHosts::name_function(Function function) {
    const Lock lock(mutex_);
    writes_.store(true, std::memory_order_relaxed);
    return name(function_names_, std::pair(function.function, function.argument), functions_, function);
}

std::uint64_t GraphHosts::name_memory(Memory memory) {
    const Lock lock(mutex_);
    if (memory.use == Use::write) {
        writes_.store(true, std::memory_order_relaxed);
    }
    return name(memory_names_, std::tuple(memory.place, memory.bytes, memory.use), memories_, memory);
}

std::optional<GraphHosts::Function> GraphHosts::function(std::uint64_t name) const {
    const Lock lock(mutex_);
    return look_up(functions_, name);
}

std::optional<GraphHosts::Memory> GraphHosts::memory(std::uint64_t name) const {
    const Lock lock(mutex_);
    return look_up(memories_, name);
}

}  // namespace gpupool::client
