// The captures in progress, shared by capture.cpp and the capture entry points.
//
// Ownership, threads: as in capture.h. Errors: none.
#pragma once

#include <thread>
#include <unordered_map>

#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

// A capturing stream, and the nodes that its next node will depend on. They are handles, since a program may destroy a
// captured node.
struct CapturingStream {
    StreamPtr stream;
    std::vector<CUgraphNode> dependencies;
    std::vector<CUgraphEdgeData>
        edges;  // one plain edge per dependency; a query of the capture returns a pointer to them
};

struct Capture {
    unsigned long long id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id owner;
    StreamPtr origin;
    GraphPtr graph;
    bool into_existing_graph = false;
    bool invalid = false;
    std::unordered_map<const Stream*, CapturingStream> streams;

    void join(const StreamPtr& stream, const std::vector<CUgraphNode>& dependencies);
};

// The nodes that an event stands for if its last record was captured, and their capture.
struct EventCapture {
    std::weak_ptr<Capture> capture;
    std::vector<CUgraphNode> nodes;
};

struct Captures {
    std::unordered_map<const Stream*, std::shared_ptr<Capture>> by_stream;
    std::vector<std::shared_ptr<Capture>> all;

    Capture* of(const Stream& stream) const;
    // Whether a blocking stream of the context captures. The legacy stream may not be used meanwhile.
    bool any_blocking(const Context& context) const;
    void invalidate_blocking(const Context& context);
    void begin(std::shared_ptr<Capture> capture, const std::vector<CUgraphNode>& dependencies);
    // Releases all its streams, and also its graph unless `keep_graph` is set.
    void end(Capture& capture, bool keep_graph);
};
Captures& captures() GP_REQUIRES(graph_mutex());

CUstreamCaptureMode& thread_capture_mode();
std::vector<Node*> resolve(const std::vector<CUgraphNode>& handles) GP_REQUIRES(graph_mutex());

}  // namespace gpupool::softgpu
