// Stream capture: work submitted to a capturing stream becomes nodes of a graph.
//
// A capture begins in one stream (its origin) and spreads to streams that wait for an event recorded in it. A mistake
// invalidates it: nothing more can be captured, and ending it returns an error.
//
// Ownership: a capture keeps its streams and its graph until it ends.
// Threads: any. Everything is guarded by graph_mutex(), which these functions lock.
// Errors: CUresult, as the driver returns them.
#pragma once

#include <atomic>

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

// Number of captures in progress in this process. While it is 0, submissions check nothing else.
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

// The steps of captured(). may_submit() reports whether the stream captures, or
// returns an error if a capture forbids its use; add_captured() adds a node behind what the stream captured last.
CUresult may_submit(const StreamPtr& stream, bool& captures) GP_REQUIRES(graph_mutex());
Node* add_captured(const StreamPtr& stream, PayloadPtr payload) GP_REQUIRES(graph_mutex());

// Returns true if the submission must not run, since it was captured or refused. `make(payload)` sets its payload, or
// returns an error.
template <class F>
bool captured_or_failed(const StreamPtr& stream, F make, CUresult& result) {
    if (capture_count().load() == 0) {
        return false;
    }
    const Lock lock(graph_mutex());
    bool captures = false;
    result = may_submit(stream, captures);
    if (result != CUDA_SUCCESS || !captures) {
        return result != CUDA_SUCCESS;
    }
    PayloadPtr payload;
    result = make(payload);
    if (result == CUDA_SUCCESS) {
        add_captured(stream, std::move(payload));
    }
    return true;
}

// The same for a `make` that returns the payload and cannot fail.
template <class F>
bool captured(const StreamPtr& stream, F make, CUresult& result) {
    const auto make_payload = [&](PayloadPtr& payload) {
        payload = make();
        return CUDA_SUCCESS;
    };
    return captured_or_failed(stream, make_payload, result);
}

// --- What a capture forbids. Each call invalidates the captures that it violates.
//
// For a call that could wait for, or change, what a capture in progress depends on. Whether it may depends on the modes
// of threads and captures.
CUresult refuse_unsafe_call();
// For a call that queries or waits for the work of a stream or a context.
CUresult refuse_wait(const StreamPtr& stream);
CUresult refuse_wait(const Context& context);
CUresult refuse_wait(Event& event);
// For calls that cannot be captured, and for those that are not allowed on an event that a capture recorded (which does
// not invalidate the capture).
CUresult refuse_captured(const StreamPtr& stream);
CUresult refuse_captured(Event& event);

// --- Events. Return true if the call is finished, with `result`: it was captured or refused.
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
