// User objects: objects of the program that graphs keep alive.
#include "server/softgpu/api/graph_handles.h"

using namespace gpupool::softgpu;

#define SOFTGPU_USER_OBJECT(handle, name)                 \
    const auto name = graphs().user_objects.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE

namespace {

template <class Change>
CUresult count_references(CUuserObject handle, unsigned count, Change change) {
    SOFTGPU_READY();
    SOFTGPU_USER_OBJECT(handle, object);
    if (count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    change(*object);
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* result, void* object, CUhostFn destructor, unsigned count,
                                    unsigned flags) {
    SOFTGPU_READY();
    if (result == nullptr || destructor == nullptr || count == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<UserObject>(destructor, object, count);
    graphs().user_objects.add(made);
    *result = reinterpret_cast<CUuserObject>(made.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned count) {
    return count_references(handle, count, [count](UserObject& object) { object.retain(count); });
}
CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned count) {
    return count_references(handle, count, [count](UserObject& object) { object.release(count); });
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(graph_handle, graph);
    SOFTGPU_USER_OBJECT(handle, object);
    if (count == 0 || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) {
        object->retain(count);
    }
    graph->objects.add(object, count);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(graph_handle, graph);
    SOFTGPU_USER_OBJECT(handle, object);
    if (count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->objects.release(object, count);
    return CUDA_SUCCESS;
}

}  // extern "C"
