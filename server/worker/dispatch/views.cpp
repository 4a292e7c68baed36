#include "server/worker/dispatch/views.h"

#include <memory>
#include <utility>

namespace gpupool::worker {
namespace {

// Commands that arrived before the context's end was requested are still issued; new ones are refused, because nothing
// would ever issue them.
bool takes_work(const ContextState& context, const Command& command, CUresult& result) {
    if (!context.ending || command.ready) [[likely]] {
        return true;
    }
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return false;
}

}  // namespace

StreamState* SessionView::stream_of(Command& command, CUstream handle, CUresult& result) const {
    StreamState* const stream = find_stream(command, handle, result);
    if (stream != nullptr) {
        command.stream = stream->name();
    }
    return stream;
}

StreamState* SessionView::find_stream(const Command& command, CUstream handle, CUresult& result) const {
    handle = command.meant(handle);
    ContextState* context = context_of(command);
    if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        StreamState* stream = nullptr;
        if (context != nullptr) {
            const auto it = context->streams.find(handle);
            stream = it == context->streams.end() ? nullptr : it->second.get();
        }
        stream = stream != nullptr ? stream : objects.stream(handle);
        // Commands that arrived before the stream was destroyed are still issued.
        if (stream == nullptr || (stream->ending && !command.ready)) {
            result = CUDA_ERROR_INVALID_HANDLE;
            return nullptr;
        }
        return takes_work(*stream->context, command, result) ? stream : nullptr;
    }
    if (context == nullptr) {
        result = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    if (!takes_work(*context, command, result)) {
        return nullptr;
    }
    if (handle == CU_STREAM_LEGACY) {
        return &context->legacy;
    }
    if (context->green != nullptr) {  // it has no such streams
        result = CUDA_ERROR_INVALID_HANDLE;
        return nullptr;
    }
    return default_stream_of_thread(command, *context, result);
}

StreamState* SessionView::default_stream_of_thread(const Command& command, ContextState& context,
                                                   CUresult& result) const {
    const std::uint32_t thread = command.header.thread;
    if (const auto own = context.per_thread.find(thread); own != context.per_thread.end()) {
        return own->second.get();
    }
    if (!objects.stream_fits() || !memory.charge_streams(api, context, context.stream_count() + 1)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        return nullptr;
    }
    auto stream = std::make_unique<StreamState>();
    stream->client = CU_STREAM_PER_THREAD;
    stream->thread = thread;
    stream->context = &context;
    result = scheduler.enter(&context);
    if (result == CUDA_SUCCESS) {
        result = driver::call(api.cuStreamCreate, &stream->driver, static_cast<unsigned>(CU_STREAM_DEFAULT));
    }
    if (result != CUDA_SUCCESS) {
        return nullptr;
    }
    return (context.per_thread[thread] = std::move(stream)).get();
}

namespace {

// Null if it names no pool.
CUmemoryPool driver_pool(const HandleTable& handles, std::uint64_t client) {
    return codec::kind_of(client) == codec::HandleKind::memory_pool
               ? codec::from_wire<CUmemoryPool>(handles.find(codec::from_wire<CUmemoryPool>(client)).driver)
               : nullptr;
}

}  // namespace

bool SessionView::begin_destroy(std::uint64_t client) const {
    if (!handles.begin_destroy(client)) {
        return false;
    }
    memory.pools.begin_destroy(driver_pool(handles, client));
    return true;
}

void SessionView::end_destroy(std::uint64_t client, bool ended) const {
    handles.end_destroy(client);
    memory.pools.end_destroy(driver_pool(handles, client), ended);
    if (!ended) {
        return;
    }
    handles.unbind(client);
    if (!memory.forget_array(client)) {
        memory.code.forget(client);
    }
}

}  // namespace gpupool::worker
