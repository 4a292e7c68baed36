// User objects: their destructors run when the last reference is released.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/graph_parts.h"

namespace gpupool::programs {
namespace {

struct Watched {
    std::atomic<int> destroyed{0};
    std::atomic<bool> here{false};     // on the thread that made the call
    std::atomic<bool> refused{false};  // a call in the destructor was
    std::thread::id thread = std::this_thread::get_id();
};

void CUDA_CB note_destroyed(void* argument) {
    auto& watched = *static_cast<Watched*>(argument);
    watched.here = std::this_thread::get_id() == watched.thread;
    watched.refused = cuStreamQuery(nullptr) == CUDA_ERROR_NOT_PERMITTED;
    watched.destroyed.fetch_add(1);
}

CUuserObject make_object(Watched& watched, unsigned references = 1) {
    CUuserObject object = nullptr;
    DRIVER_OK(cuUserObjectCreate(&object, &watched, note_destroyed, references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

void is_destroyed(const Watched& watched, bool expected, const char* when) {
    check(watched.destroyed == (expected ? 1 : 0), "%s: destroyed %d times", when, watched.destroyed.load());
    if (expected) {
        check(watched.here && watched.refused, "%s: by the calling thread, without calls of the driver", when);
    }
}

CUgraph graph_with(const GraphWork& work, Watched& watched) {
    const CUgraph graph = kernel_graph(work);
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(watched), 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

}  // namespace

void counted_objects() {
    Watched watched;
    CUuserObject object = nullptr;
    check_result(cuUserObjectCreate(nullptr, &watched, note_destroyed, 1, 1), CUDA_ERROR_INVALID_VALUE, "no place");
    check_result(cuUserObjectCreate(&object, &watched, nullptr, 1, 1), CUDA_ERROR_INVALID_VALUE, "no destructor");
    check_result(cuUserObjectCreate(&object, &watched, note_destroyed, 0, 1), CUDA_ERROR_INVALID_VALUE, "none");
    check_result(cuUserObjectCreate(&object, &watched, note_destroyed, 1, 0), CUDA_ERROR_INVALID_VALUE, "no flag");
    object = make_object(watched, 2);
    check_result(cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE, "retained not at all");
    check_result(cuUserObjectRelease(object, 0), CUDA_ERROR_INVALID_VALUE, "released not at all");
    check_result(cuUserObjectRetain(nullptr, 1), CUDA_ERROR_INVALID_VALUE, "no object");
    DRIVER_OK(cuUserObjectRetain(object, 1));
    DRIVER_OK(cuUserObjectRelease(object, 2));
    is_destroyed(watched, false, "two of three released");
    DRIVER_OK(cuUserObjectRelease(object, 1));
    is_destroyed(watched, true, "all released");
}

void objects_of_graphs(const GraphWork& work) {
    Watched kept, moved, in_clone, in_child, late;
    CUgraph graph = kernel_graph(work);
    const CUuserObject object = make_object(kept);
    check_result(cuGraphRetainUserObject(graph, object, 1, 5), CUDA_ERROR_INVALID_VALUE, "unknown flags");
    check_result(cuGraphRetainUserObject(graph, object, 0, 0), CUDA_ERROR_INVALID_VALUE, "retained not at all");
    check_result(cuGraphRetainUserObject(nullptr, object, 1, 0), CUDA_ERROR_INVALID_VALUE, "no graph");
    DRIVER_OK(cuGraphRetainUserObject(graph, object, 1, 0));
    DRIVER_OK(cuUserObjectRelease(object, 1));
    is_destroyed(kept, false, "the graph has a reference");
    DRIVER_OK(cuGraphReleaseUserObject(graph, object, 1));
    is_destroyed(kept, true, "which it released");
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(moved), 1, CU_GRAPH_USER_OBJECT_MOVE));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(moved, true, "its graph is destroyed");

    graph = graph_with(work, in_clone);
    CUgraph clone = nullptr;
    DRIVER_OK(cuGraphClone(&clone, graph));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(in_clone, false, "a clone has it");
    DRIVER_OK(cuGraphDestroy(clone));
    is_destroyed(in_clone, true, "the clone is destroyed");

    CUgraph parent = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&parent, 0));
    graph = graph_with(work, in_child);
    DRIVER_OK(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(in_child, false, "a child graph's node has it");
    DRIVER_OK(cuGraphDestroyNode(node));
    is_destroyed(in_child, true, "the node is destroyed");
    DRIVER_OK(cuGraphDestroy(parent));

    graph = kernel_graph(work);
    const CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(late), 1, CU_GRAPH_USER_OBJECT_MOVE));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(late, true, "an executable that was made before does not have it");
    DRIVER_OK(cuGraphExecDestroy(executable));
}

void objects_of_captures(const GraphWork& work) {
    for (const bool valid : {true, false}) {
        Watched watched;
        CUstreamCaptureStatus status{};
        CUgraph graph = nullptr, ended = nullptr;
        DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        DRIVER_OK(cuStreamGetCaptureInfo(work.stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
        DRIVER_OK(cuGraphRetainUserObject(graph, make_object(watched), 1, CU_GRAPH_USER_OBJECT_MOVE));
        if (!valid) {
            check_result(cuStreamSynchronize(work.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a wait");
        }
        check_result(cuStreamEndCapture(work.stream, &ended),
                     valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the end of the capture");
        is_destroyed(watched, !valid, valid ? "a graph was captured" : "no graph was captured");
        if (valid) {
            DRIVER_OK(cuGraphDestroy(ended));
            is_destroyed(watched, true, "the captured graph was destroyed");
        }
    }
}

void objects_of_executables(const GraphWork& work) {
    Watched idle, first, second, launched;
    CUgraph graph = graph_with(work, idle);
    CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(idle, false, "an executable has it");
    DRIVER_OK(cuGraphExecDestroy(executable));
    is_destroyed(idle, true, "the executable is destroyed, never launched");

    graph = graph_with(work, first);
    executable = instantiate(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    graph = graph_with(work, second);
    CUgraphExecUpdateResultInfo information{};
    DRIVER_OK(cuGraphExecUpdate(executable, graph, &information));
    is_destroyed(first, true, "the executable was updated from another graph");
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(second, false, "whose object it has now");
    DRIVER_OK(cuGraphExecDestroy(executable));
    is_destroyed(second, true, "until it is destroyed");

    graph = graph_with(work, launched);
    executable = instantiate(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    is_destroyed(launched, false, "launched");
    DRIVER_OK(cuGraphExecDestroy(executable));
    for (int i = 0; i < 500 && launched.destroyed == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    check(launched.destroyed == 1 && launched.refused, "destroyed after its launches: %d", launched.destroyed.load());
}

}  // namespace gpupool::programs
