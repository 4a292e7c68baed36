// User objects: objects of the program that graphs keep alive (client/core/graphs/user_objects.h).

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {

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
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr || count == 0) {
        return s == nullptr ? result : CUDA_ERROR_INVALID_VALUE;
    }
    return s->user_objects.retain(object, count);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr || count == 0) {
        return s == nullptr ? result : CUDA_ERROR_INVALID_VALUE;
    }
    UserObjects::Destructors due;
    result = s->user_objects.release(object, count, due);
    run(due);
    return result;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (codec::kind_of(codec::to_wire(graph)) != codec::HandleKind::graph || count == 0 ||
        (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return s->user_objects.retain(graph, object, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (codec::kind_of(codec::to_wire(graph)) != codec::HandleKind::graph || object == nullptr || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    UserObjects::Destructors due;
    result = s->user_objects.release(graph, object, count, due);
    run(due);
    return result;
}

}  // namespace gpupool::client::entry
