// The core set: the calls and notices that every session needs. If client and server do not agree on all of them, the
// session is refused (agreement.h). Any other call that is not agreed only fails itself.
//
// The set has the calls that every program makes (contexts, memory, code, launches, copies, streams, events, waiting,
// host functions), the calls that the client sends without a check (`Session::send` instead of `remote`), and the
// notices that a thread may wait for. A change of the set does not change the wire format: each end checks the peer's
// list against its own core set.
#pragma once

#include <algorithm>
#include <array>

#include "protocol/calls/call.h"
#include "protocol/codec/record.h"

namespace gpupool::codec {
namespace detail {

template <class... Call>
constexpr std::array<calls::Opcode, sizeof...(Call)> opcodes_of() {
    static_assert((calls::is_remote<Call> && ...), "a call of the core set is never sent");
    return {Call::kOpcode...};
}

}  // namespace detail

inline constexpr auto kCoreCalls = [] {
    using namespace calls;
    return detail::opcodes_of<
        // contexts
        cuDevicePrimaryCtxRetain, gpPrimaryContextEnd, gpContextCreate, gpContextDestroy, gpContextSynchronize,
        gpContextWait,
        // memory
        gpSlabCreate, gpSlabDestroy, gpSlabPrepare, cuMemGetInfo_v2, gpHostMirror, gpHostUnmirror, gpHostWrite,
        // code
        gpImageOffer, gpImageData, gpLibraryLoad, gpModuleLoad, gpKernelResolve, gpFunctionResolve, gpKernelFunction,
        gpLibraryModule, gpFunctionAttributes, gpFunctionSetAttribute, cuModuleUnload, cuLibraryUnload,
        cuModuleGetGlobal_v2, cuLibraryGetGlobal,
        // launches and copies
        gpLaunch, gpCopyToDevice, gpCopyFromDevice, gpCopyShapedToDevice, gpCopyShapedFromDevice, gpCopyShapedOnDevice,
        gpStreamCatchUp, cuMemcpyDtoDAsync_v2, cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD32_v2, cuMemsetD32Async,
        // streams and events
        cuStreamCreate, cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamQuery,
        cuStreamWaitEvent, gpStreamWatch, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventQuery,
        cuEventSynchronize, gpEventRecord, gpEventWatch,
        // host functions
        gpHostFunction, gpHostFunctionDone>();
}();

// Notices that only inform (printed text, traces) are not in the set: they are not sent if they are not agreed.
inline constexpr std::array kCoreNotices = {
    NoticeType::pull,           NoticeType::host_function,   NoticeType::deferred_error,
    NoticeType::throttle,       NoticeType::transfer_failed, NoticeType::graph_function,
    NoticeType::graph_upload,   NoticeType::graph_download,  NoticeType::host_memory,
    NoticeType::event_complete, NoticeType::pieces_sent,     NoticeType::ended,
    NoticeType::ahead_taken,    NoticeType::slab_prepared,   NoticeType::stream_complete,
};

constexpr bool is_core(calls::Opcode opcode) {
    return std::find(kCoreCalls.begin(), kCoreCalls.end(), opcode) != kCoreCalls.end();
}
constexpr bool is_core(NoticeType type) {
    return std::find(kCoreNotices.begin(), kCoreNotices.end(), type) != kCoreNotices.end();
}

template <class Call>
inline constexpr bool is_core_call = is_core(Call::kOpcode);

}  // namespace gpupool::codec
