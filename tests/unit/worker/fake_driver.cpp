#include "tests/unit/worker/fake_driver.h"

#include <algorithm>

namespace gpupool::test {

FakeDriver* FakeDriver::self = nullptr;

FakeDriver::FakeDriver() {
    self = this;
    api.cuCtxSetCurrent = [](CUcontext context) {
        self->current = context;
        return CUDA_SUCCESS;
    };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
        *stream = reinterpret_cast<CUstream>(self->next_ += 0x100);
        return CUDA_SUCCESS;
    };
    api.cuEventCreate = [](CUevent* event, unsigned) {
        *event = reinterpret_cast<CUevent>(self->next_ += 0x100);
        self->events_[*event] = {};
        return CUDA_SUCCESS;
    };
    api.cuEventDestroy_v2 = [](CUevent event) {
        return self->events_.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    };
    api.cuEventRecord = [](CUevent event, CUstream stream) {
        if (self->record_result != CUDA_SUCCESS) {
            return self->record_result;
        }
        self->events_.at(event) = {stream, ++self->streams_[stream].records};
        return CUDA_SUCCESS;
    };
    api.cuEventQuery = [](CUevent event) {
        const auto it = self->events_.find(event);
        if (it == self->events_.end()) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (self->before_query) {
            self->before_query(it->second.stream);
        }
        const bool done = it->second.index <= self->streams_[it->second.stream].completed;
        return done ? self->query_result : CUDA_ERROR_NOT_READY;
    };
    api.cuEventSynchronize = [](CUevent event) {
        ++self->event_synchronizations;
        return self->api.cuEventQuery(event);
    };
    api.cuStreamWriteValue32_v2 = [](CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
        if (self->record_result != CUDA_SUCCESS) {
            return self->record_result;
        }
        Stream& state = self->streams_[stream];
        state.writes.push_back({++state.records, address, value});
        return CUDA_SUCCESS;
    };
    api.cuStreamQuery = [](CUstream stream) {
        ++self->stream_queries;
        const Stream& state = self->streams_[stream];
        return state.completed == state.records ? self->query_result : CUDA_ERROR_NOT_READY;
    };
    api.cuStreamSynchronize = api.cuStreamQuery;
    api.cuCtxGetCurrent = [](CUcontext* context) {
        *context = self->current;
        return CUDA_SUCCESS;
    };
    api.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
    api.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
        *device = reinterpret_cast<CUdeviceptr>(host);
        return CUDA_SUCCESS;
    };
}

FakeDriver::~FakeDriver() {
    self = nullptr;
}

void FakeDriver::complete(CUstream stream) {
    complete(stream, streams_[stream].records);
}

void FakeDriver::complete(CUstream stream, std::size_t count) {
    Stream& state = streams_[stream];
    state.completed = std::min(state.records, state.completed + count);
    write_completed(state);
}

void FakeDriver::write_completed(Stream& stream) const {
    std::erase_if(stream.writes, [&](const Write& write) {
        if (write.index > stream.completed) {
            return false;
        }
        if (query_result == CUDA_SUCCESS) {
            __atomic_store_n(reinterpret_cast<cuuint32_t*>(write.address), write.value, __ATOMIC_RELEASE);
        }
        return true;
    });
}

std::size_t FakeDriver::records_on(CUstream stream) const {
    const auto it = streams_.find(stream);
    return it == streams_.end() ? 0 : it->second.records;
}

CUevent FakeDriver::recorded_event(CUstream stream) {
    CUevent event = nullptr;
    api.cuEventCreate(&event, 0);
    driver::call(TestPermit(), api.cuEventRecord, event, stream);
    return event;
}

}  // namespace gpupool::test
