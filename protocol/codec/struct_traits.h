// Which structs may be sent as their bytes, and which handles they contain.
//
// A struct with pointers or handles must not be sent unchanged. Every struct that a rule sends is listed here: as
// plain, or with a visitor that finds its handles. An unlisted struct does not compile. A struct of gpupool's also has
// a list of its members (protocol/calls/members.h).
#pragma once

#include <cstring>
#include <type_traits>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/internal.h"
#include "protocol/calls/members.h"
#include "protocol/codec/handles.h"

namespace gpupool::codec {

// The numeric value of an enumeration field from a peer. It may be no valid enumerator, so it must not be read as one.
template <class Enum>
int number_of(const Enum& field) {
    static_assert(sizeof(Enum) == sizeof(int));
    int number = 0;
    std::memcpy(&number, static_cast<const void*>(&field), sizeof number);
    return number;
}

template <class T>
struct StructTraits {
    static constexpr bool listed = std::is_arithmetic_v<T> || std::is_enum_v<T> || is_handle<T>;
    static constexpr bool has_handles = is_handle<T>;
    template <class Visit>
    static void visit(T& value, Visit&& visit) {
        if constexpr (is_handle<T>) {
            visit(value);
        }
    }
};

#define GP_TRAITS(type, handles, visit_body)                                                       \
    template <>                                                                                    \
    struct StructTraits<type> {                                                                    \
        static constexpr bool listed = true;                                                       \
        static constexpr bool has_handles = handles;                                               \
        template <class Visit>                                                                     \
        static void visit([[maybe_unused]] type& value, [[maybe_unused]] Visit&& visit) visit_body \
    };

// Structs of cuda.h, in the global namespace. `visit_body` uses `value` and calls `visit(handle)` for each handle in
// it.
#define GP_PLAIN(type) GP_TRAITS(::type, false, {})
#define GP_WITH_HANDLES(type, visit_body) GP_TRAITS(::type, true, visit_body)
// Structs of gpupool's, which have a list of members.
#define GP_OWN_PLAIN(type)           \
    static_assert(HasMembers<type>); \
    GP_TRAITS(type, false, {})
#define GP_OWN_WITH_HANDLES(type, visit_body) \
    static_assert(HasMembers<type>);          \
    GP_TRAITS(type, true, visit_body)

GP_OWN_PLAIN(ImageHash)
GP_OWN_PLAIN(ParameterLayout)
GP_OWN_PLAIN(CopyRange)
GP_PLAIN(CUuuid)
GP_PLAIN(CUmemAllocationProp)
GP_PLAIN(CUmemAccessDesc)
GP_PLAIN(CUmemLocation)
GP_PLAIN(CUmemPoolPtrExportData)
GP_PLAIN(CUexecAffinityParam)
GP_PLAIN(CUdevResource)  // the worker replaces the driver's content (server/worker/session/device_resources.h)
GP_PLAIN(CUtensorMap)
GP_PLAIN(CUatomicOperation)
GP_PLAIN(CUDA_ARRAY_DESCRIPTOR)
GP_PLAIN(CUDA_ARRAY3D_DESCRIPTOR)
GP_PLAIN(CUDA_ARRAY_SPARSE_PROPERTIES)
GP_PLAIN(CUDA_ARRAY_MEMORY_REQUIREMENTS)
GP_PLAIN(CUDA_TEXTURE_DESC)
GP_PLAIN(CUDA_RESOURCE_VIEW_DESC)
GP_PLAIN(CUmemPoolProps)  // win32SecurityAttributes is NULL on Linux
GP_PLAIN(CUgraphEdgeData)
GP_PLAIN(CUgraphExecUpdateResultInfo)  // both sides translate its nodes by hand

GP_OWN_WITH_HANDLES(LaunchShape, { visit(value.function); })
GP_WITH_HANDLES(CUDA_MEMCPY3D, {
    if (number_of(value.srcMemoryType) == CU_MEMORYTYPE_ARRAY) {
        visit(value.srcArray);
    }
    if (number_of(value.dstMemoryType) == CU_MEMORYTYPE_ARRAY) {
        visit(value.dstArray);
    }
})
GP_OWN_WITH_HANDLES(GraphNode, {
    visit(value.context);
    visit(value.function);
    StructTraits<CUDA_MEMCPY3D>::visit(value.copy, visit);
    visit(value.graph);
    visit(value.event);
})
GP_WITH_HANDLES(CUDA_RESOURCE_DESC, {
    if (number_of(value.resType) == CU_RESOURCE_TYPE_ARRAY) {
        visit(value.res.array.hArray);
    } else if (number_of(value.resType) == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        visit(value.res.mipmap.hMipmappedArray);
    }
})
GP_WITH_HANDLES(CUarrayMapInfo, {  // its memory has the driver's handle
    if (number_of(value.resourceType) == CU_RESOURCE_TYPE_ARRAY) {
        visit(value.resource.array);
    } else if (number_of(value.resourceType) == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        visit(value.resource.mipmap);
    }
})
GP_WITH_HANDLES(CUlaunchAttribute, {
    if (number_of(value.id) == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
        visit(value.value.programmaticEvent.event);
    } else if (number_of(value.id) == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
        visit(value.value.launchCompletionEvent.event);
    }
})
GP_WITH_HANDLES(CUlaunchAttributeValue, {})
GP_WITH_HANDLES(CUstreamBatchMemOpParams, {})

#undef GP_TRAITS
#undef GP_PLAIN
#undef GP_WITH_HANDLES
#undef GP_OWN_PLAIN
#undef GP_OWN_WITH_HANDLES

}  // namespace gpupool::codec
