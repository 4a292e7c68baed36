#include "server/softgpu/graph/dot.h"

#include <fmt/format.h>

#include <fstream>

namespace gpupool::softgpu {
namespace {

const char* name_of(CUgraphNodeType type) {
    switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
        case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
        case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
        case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
        case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
        case CU_GRAPH_NODE_TYPE_EMPTY: return "EMPTY";
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "MEM_ALLOC";
        case CU_GRAPH_NODE_TYPE_MEM_FREE: return "MEM_FREE";
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "BATCH_MEM_OP";
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: return "CONDITIONAL";
        default: return "NODE";
    }
}

// Kernel names are C identifiers, so labels need no quoting.
std::string label_of(const Node& node) {
    const char* name = name_of(type_of(*node.payload));
    if (const auto* kernel = std::get_if<KernelPayload>(node.payload.get())) {
        const auto& call = kernel->call;
        return fmt::format("{}\\n{}<<<({},{},{}),({},{},{}),{}>>>", name, call.function->code->name, call.grid[0],
                           call.grid[1], call.grid[2], call.block[0], call.block[1], call.block[2], call.shared_bytes);
    }
    if (const auto* copy = std::get_if<CopyPayload>(node.payload.get())) {
        return fmt::format("{}\\n{}x{}x{} bytes", name, copy->copy.WidthInBytes, copy->copy.Height, copy->copy.Depth);
    }
    if (const auto* fill = std::get_if<FillPayload>(node.payload.get())) {
        return fmt::format("{}\\n{:#x} = {}", name, fill->fill.dst, fill->fill.value);
    }
    return name;
}

void write_nodes(std::string& text, const Graph& graph) {
    for (const auto& node : graph.nodes) {
        text += fmt::format("\"graph_{}_node_{}\"[label=\"{}\"];\n", graph.id, node->id, label_of(*node));
        for (const Node* to : node->dependents) {
            text += fmt::format("\"graph_{0}_node_{1}\" -> \"graph_{0}_node_{2}\";\n", graph.id, node->id, to->id);
        }
    }
    for (const auto& node : graph.nodes) {
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            text += fmt::format("subgraph cluster_{} {{\nlabel=\"graph_{}\";\n", inner->id, inner->id);
            write_nodes(text, *inner);
            text += "}\n";
        }
    }
}

}  // namespace

std::string dot_text(const Graph& graph) {
    std::string text = fmt::format("digraph dot {{\nsubgraph cluster_{0} {{\nlabel=\"graph_{0}\";\n", graph.id);
    write_nodes(text, graph);
    return text + "}\n}\n";
}

bool write_file(const char* path, const std::string& text) {
    std::ofstream file(path);
    file << text;
    return static_cast<bool>(file.flush());
}

}  // namespace gpupool::softgpu
