// Streams and events that are really asynchronous. Overlap is shown by order (a kernel that only another stream's
// kernel can release), never by time. Argument: elements per stream.
#include <cstdint>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

constexpr int kStreamCount = 4;

__global__ void scale(int* data, int count, int factor, int offset) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] = data[i] * factor + offset;
    }
}

__global__ void wait_for_flag(const volatile int* flag, int* outcome) {
    *outcome = spin_until_set(flag);
}

__global__ void set_flag(volatile int* flag) {
    *flag = 1;
}

__global__ void copy_word(const int* from, int* to) {
    *to = *from;
}

// Each stream: copy in, two kernels, copy out, from pinned memory.
void independent_streams(int count) {
    const size_t bytes = count * sizeof(int);
    cudaStream_t streams[kStreamCount];
    int* host[kStreamCount];
    int* device[kStreamCount];
    for (int s = 0; s < kStreamCount; s++) {
        CUDA_OK(s % 2 == 0 ? cudaStreamCreate(&streams[s])
                           : cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CUDA_OK(cudaMallocHost(&host[s], bytes));
        CUDA_OK(cudaMalloc(&device[s], bytes));
        for (int i = 0; i < count; i++) {
            host[s][i] = i + s;
        }
    }
    for (int s = 0; s < kStreamCount; s++) {
        CUDA_OK(cudaMemcpyAsync(device[s], host[s], bytes, cudaMemcpyHostToDevice, streams[s]));
        scale<<<(count + 127) / 128, 128, 0, streams[s]>>>(device[s], count, 3, s);
        scale<<<(count + 127) / 128, 128, 0, streams[s]>>>(device[s], count, 2, 1);
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaMemcpyAsync(host[s], device[s], bytes, cudaMemcpyDeviceToHost, streams[s]));
    }
    for (int s = 0; s < kStreamCount; s++) {
        CUDA_OK(cudaStreamSynchronize(streams[s]));
        int wrong = 0;
        for (int i = 0; i < count; i++) {
            wrong += host[s][i] != ((i + s) * 3 + s) * 2 + 1;
        }
        check(wrong == 0, "stream %d: %d of %d elements differ", s, wrong, count);
        CUDA_OK(cudaFree(device[s]));
        CUDA_OK(cudaFreeHost(host[s]));
        CUDA_OK(cudaStreamDestroy(streams[s]));
    }
}

// words: [0] the flag, [1] the waiting kernel's result, [2] written behind it in another stream.
void overlap(int* words) {
    cudaStream_t waiting, releasing, following;
    cudaEvent_t before, after, followed;
    CUDA_OK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&releasing, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&following, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreate(&before));
    CUDA_OK(cudaEventCreate(&after));
    CUDA_OK(cudaEventCreateWithFlags(&followed, cudaEventDisableTiming));

    CUDA_OK(cudaEventRecord(before, waiting));
    wait_for_flag<<<1, 1, 0, waiting>>>(words, words + 1);
    CUDA_OK(cudaEventRecord(after, waiting));
    CUDA_OK(cudaStreamWaitEvent(following, after, 0));
    copy_word<<<1, 1, 0, following>>>(words + 1, words + 2);
    CUDA_OK(cudaEventRecord(followed, following));
    CUDA_OK(cudaGetLastError());

    check(cudaStreamQuery(waiting) == cudaErrorNotReady, "a waiting stream is not ready");
    check(cudaEventQuery(after) == cudaErrorNotReady, "an event behind a waiting kernel is not ready");
    check(cudaEventQuery(followed) == cudaErrorNotReady, "an event behind another stream's event is not ready");
    float milliseconds = -1.0f;
    check(cudaEventElapsedTime(&milliseconds, before, after) == cudaErrorNotReady, "elapsed time is not ready");
    cudaGetLastError();  // clears "not ready", which the runtime records as an error

    set_flag<<<1, 1, 0, releasing>>>(words);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventSynchronize(followed));
    int seen[3] = {};
    CUDA_OK(cudaMemcpyAsync(seen, words, sizeof seen, cudaMemcpyDeviceToHost, releasing));
    CUDA_OK(cudaStreamSynchronize(releasing));
    check(seen[0] == 1 && seen[1] == 1, "a kernel released by a later kernel of another stream (saw %d)", seen[1]);
    check(seen[2] == 1, "work behind an event of another stream ran after it (saw %d)", seen[2]);
    check(cudaEventQuery(after) == cudaSuccess && cudaStreamQuery(waiting) == cudaSuccess, "everything is ready");
    CUDA_OK(cudaEventElapsedTime(&milliseconds, before, after));
    check(milliseconds > 0.0f, "elapsed time of the waiting kernel is positive");
    check(cudaEventElapsedTime(&milliseconds, before, followed) == cudaErrorInvalidResourceHandle,
          "no elapsed time for an event without timing");
    check(cudaGetLastError() == cudaErrorInvalidResourceHandle, "and that error is the last one");

    CUDA_OK(cudaEventDestroy(before));
    CUDA_OK(cudaEventDestroy(after));
    CUDA_OK(cudaEventDestroy(followed));
    CUDA_OK(cudaStreamDestroy(waiting));
    CUDA_OK(cudaStreamDestroy(releasing));
    CUDA_OK(cudaStreamDestroy(following));
}

void callbacks(int* words) {
    struct Log {
        int count = 0;
        int order[3] = {};
    } log;
    struct Entry {
        Log* log;
        int id;
    } entries[3] = {{&log, 1}, {&log, 2}, {&log, 3}};
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    for (Entry& entry : entries) {
        set_flag<<<1, 1, 0, stream>>>(words);
        CUDA_OK(cudaLaunchHostFunc(
            stream,
            [](void* data) {
                auto* mine = static_cast<Entry*>(data);
                mine->log->order[mine->log->count++] = mine->id;
            },
            &entry));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    check(log.count == 3 && log.order[0] == 1 && log.order[1] == 2 && log.order[2] == 3,
          "three host functions ran in the order of their stream");
    CUDA_OK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int count = static_cast<int>(number_argument(argc, argv, 1, 5'000));
    int* words = nullptr;
    CUDA_OK(cudaMalloc(&words, 3 * sizeof(int)));
    // Load every kernel now: a first launch may wait for the device, and the kernels below wait for each other.
    CUDA_OK(cudaMemset(words, 0, 3 * sizeof(int)));
    set_flag<<<1, 1>>>(words);
    wait_for_flag<<<1, 1>>>(words, words + 1);
    copy_word<<<1, 1>>>(words + 1, words + 2);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemset(words, 0, 3 * sizeof(int)));
    CUDA_OK(cudaDeviceSynchronize());

    independent_streams(count);
    overlap(words);
    callbacks(words);
    CUDA_OK(cudaFree(words));
    return finish("streams_events");
}
