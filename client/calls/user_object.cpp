// User objects: objects of the program that graphs keep alive (client/core/graphs/user_objects.h).

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

// Changes reference counts with `change`, if the arguments are valid, and runs the destructors of objects that lost
// their last reference.
template <class Change>
CUresult count_references(bool valid, Change change) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr || !valid) {
        return s == nullptr ? result : CUDA_ERROR_INVALID_VALUE;
    }
    UserObjects::Destructors due;
    result = change(s->user_objects, due);
    run(due);
    return result;
}

bool is_graph(CUgraph graph) {
    return codec::kind_of(codec::to_wire(graph)) == codec::HandleKind::graph;
}

}  // namespace

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy, unsigned initialRefcount,
                            unsigned flags) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto object = codec::from_wire<CUuserObject>(s->mint(codec::HandleKind::user_object));
    s->user_objects.create(object, {destroy, ptr}, initialRefcount);
    *object_out = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
    return count_references(
        count != 0, [&](UserObjects& objects, UserObjects::Destructors&) { return objects.retain(object, count); });
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
    return count_references(count != 0, [&](UserObjects& objects, UserObjects::Destructors& due) {
        return objects.release(object, count, due);
    });
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
    const bool moves = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
    const bool valid = is_graph(graph) && count != 0 && (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) == 0;
    return count_references(valid, [&](UserObjects& objects, UserObjects::Destructors&) {
        return objects.retain(graph, object, count, moves);
    });
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
    const bool valid = is_graph(graph) && object != nullptr && count != 0;
    return count_references(valid, [&](UserObjects& objects, UserObjects::Destructors& due) {
        return objects.release(graph, object, count, due);
    });
}

}  // namespace gpupool::client::entry
