// Stream capture: while a stream captures, what is submitted to it becomes nodes of a graph instead.
//
// A capture begins in one stream (its origin) and spreads to streams that wait for an event recorded in it. A mistake
// invalidates it: nothing more can be captured, and the origin's end gives an error.
//
// Ownership: a capture keeps its streams and its graph until it ends. Threads: any; all of it is guarded by
// graph_mutex(), which these functions take themselves. Errors: CUresult, as the driver gives them.
#pragma once

#include <atomic>

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

// How many captures are on in this process; while there are none, no submission asks further.
std::atomic<int>& capture_count();

// --- Payloads of what streams submit.
PayloadPtr kernel_payload(KernelCall call);
PayloadPtr copy_payload(const CUDA_MEMCPY3D& copy, Context& context);
PayloadPtr fill_payload(const CUDA_MEMSET_NODE_PARAMS& fill, Context& context);
PayloadPtr host_payload(CUhostFn function, void* data);
PayloadPtr event_payload(std::shared_ptr<Event> event, bool record);
PayloadPtr operations_payload(const std::vector<CUstreamBatchMemOpParams>& operations, unsigned flags,
                              Context& context);
PayloadPtr empty_payload();

// The steps of captured(), for a caller that holds graph_mutex(): whether the stream captures (or may not be used at
// all, for a capture's sake), and adding a node behind what it captured last.
CUresult may_submit(const StreamPtr& stream, bool& captures);
Node* add_captured(const StreamPtr& stream, PayloadPtr payload);

// True when the submission is not to run: it was captured, or refused. `make` gives its payload.
template <class F>
bool captured(const StreamPtr& stream, F make, CUresult& result) {
    if (capture_count().load() == 0) return false;
    const Lock lock(graph_mutex());
    bool captures = false;
    result = may_submit(stream, captures);
    if (result != CUDA_SUCCESS) return true;
    if (captures) add_captured(stream, make());
    return captures;
}

// --- What a capture forbids; each invalidates the captures that it offends.
// A call that could wait for, or change, what a capture in progress relies on, by the modes of threads and captures.
CUresult refuse_unsafe_call();
// A call that asks for or waits for a stream's work, or a context's.
CUresult refuse_wait(const StreamPtr& stream);
CUresult refuse_wait(const Context& context);
CUresult refuse_wait(Event& event);
// What cannot be captured at all; what cannot be asked of an event that a capture recorded (which leaves that valid).
CUresult refuse_captured(const StreamPtr& stream);
CUresult refuse_captured(Event& event);

// --- Events. True when the call is done with (`result`): it was captured, or refused.
bool record_captured(const std::shared_ptr<Event>& event, const StreamPtr& stream, bool external, CUresult& result);
bool wait_captured(const std::shared_ptr<Event>& event, const StreamPtr& stream, bool external, CUresult& result);

// --- The end of streams and contexts.
void forget_stream(const Stream& stream);
void forget_context(const Context& context);

}  // namespace gpupool::softgpu

#define SOFTGPU_NOT_WHILE_CAPTURING()                                                                   \
    do {                                                                                                \
        if (const CUresult unsafe_ = ::gpupool::softgpu::refuse_unsafe_call(); unsafe_ != CUDA_SUCCESS) \
            return unsafe_;                                                                             \
    } while (false)
