// Writes a graph in Graphviz's language: each node with its type and parameters, and each edge.
//
// Threads: any. Errors: false if the file cannot be written.
#pragma once

#include <string>

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

std::string dot_text(const Graph& graph) GP_REQUIRES(graph_mutex());
bool write_file(const char* path, const std::string& text);

}  // namespace gpupool::softgpu
