// The wire form of handles.
//
// An application never sees the server driver's handles. It sees identifiers that the client minted when the object was
// created (so that it need not wait for the creation), or that the worker minted for objects that the driver created by
// itself.
//
//   bits 63..60  0
//   bits 59..52  kind (HandleKind)
//   bit  51      1: minted by the worker
//   bits 50..4   serial number, never reused within a session
//   bits 3..0    0, so that a handle looks aligned
//
// NULL and the special streams 1 (legacy) and 2 (per-thread) are sent unchanged.
#pragma once

#include <cstdint>

#include "protocol/calls/cuda_api.h"

namespace gpupool::codec {

enum class HandleKind : std::uint8_t {
    none = 0,
    context,
    module,
    function,
    library,
    kernel,
    stream,
    event,
    array,
    mipmapped_array,
    graph,
    graph_node,
    graph_exec,
    memory_pool,
    link_state,
    user_object,
    green_context,
    texture_reference,
    surface_reference,
    graphics_resource,
    external_memory,
    external_semaphore,
    resource_descriptor,
    async_callback,
    log_callback,
    count_,
};

// The kind of a handle type; `none` for types that are not handles.
template <class T>
inline constexpr HandleKind handle_kind_of = HandleKind::none;
template <>
inline constexpr HandleKind handle_kind_of<CUcontext> = HandleKind::context;
template <>
inline constexpr HandleKind handle_kind_of<CUmodule> = HandleKind::module;
template <>
inline constexpr HandleKind handle_kind_of<CUfunction> = HandleKind::function;
template <>
inline constexpr HandleKind handle_kind_of<CUlibrary> = HandleKind::library;
template <>
inline constexpr HandleKind handle_kind_of<CUkernel> = HandleKind::kernel;
template <>
inline constexpr HandleKind handle_kind_of<CUstream> = HandleKind::stream;
template <>
inline constexpr HandleKind handle_kind_of<CUevent> = HandleKind::event;
template <>
inline constexpr HandleKind handle_kind_of<CUarray> = HandleKind::array;
template <>
inline constexpr HandleKind handle_kind_of<CUmipmappedArray> = HandleKind::mipmapped_array;
template <>
inline constexpr HandleKind handle_kind_of<CUgraph> = HandleKind::graph;
template <>
inline constexpr HandleKind handle_kind_of<CUgraphNode> = HandleKind::graph_node;
template <>
inline constexpr HandleKind handle_kind_of<CUgraphExec> = HandleKind::graph_exec;
template <>
inline constexpr HandleKind handle_kind_of<CUmemoryPool> = HandleKind::memory_pool;
template <>
inline constexpr HandleKind handle_kind_of<CUlinkState> = HandleKind::link_state;
template <>
inline constexpr HandleKind handle_kind_of<CUuserObject> = HandleKind::user_object;
template <>
inline constexpr HandleKind handle_kind_of<CUgreenCtx> = HandleKind::green_context;
template <>
inline constexpr HandleKind handle_kind_of<CUtexref> = HandleKind::texture_reference;
template <>
inline constexpr HandleKind handle_kind_of<CUsurfref> = HandleKind::surface_reference;
template <>
inline constexpr HandleKind handle_kind_of<CUgraphicsResource> = HandleKind::graphics_resource;
template <>
inline constexpr HandleKind handle_kind_of<CUexternalMemory> = HandleKind::external_memory;
template <>
inline constexpr HandleKind handle_kind_of<CUexternalSemaphore> = HandleKind::external_semaphore;
template <>
inline constexpr HandleKind handle_kind_of<CUdevResourceDesc> = HandleKind::resource_descriptor;
template <>
inline constexpr HandleKind handle_kind_of<CUasyncCallbackHandle> = HandleKind::async_callback;
template <>
inline constexpr HandleKind handle_kind_of<CUlogsCallbackHandle> = HandleKind::log_callback;

template <class T>
inline constexpr bool is_handle = handle_kind_of<T> != HandleKind::none;

inline constexpr std::uint64_t kMintedByWorker = 1ull << 51;

constexpr std::uint64_t make_handle(HandleKind kind, std::uint64_t serial, bool by_worker = false) {
    return (static_cast<std::uint64_t>(kind) << 52) | (by_worker ? kMintedByWorker : 0) | (serial << 4);
}
constexpr std::uint64_t serial_of(std::uint64_t handle) {
    return (handle & (kMintedByWorker - 1)) >> 4;
}
constexpr HandleKind kind_of(std::uint64_t handle) {
    const std::uint64_t kind = handle >> 52;
    return kind < static_cast<std::uint64_t>(HandleKind::count_) ? static_cast<HandleKind>(kind) : HandleKind::none;
}

template <class Handle>
std::uint64_t to_wire(Handle handle) {
    return reinterpret_cast<std::uint64_t>(handle);
}
template <class Handle>
Handle from_wire(std::uint64_t value) {
    return reinterpret_cast<Handle>(value);
}

}  // namespace gpupool::codec
