// Several host threads that launch: each on its own stream, then all on one, then on the legacy stream, while
// allocating and freeing. Argument: launches per thread.
#include <thread>
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

constexpr int kThreadCount = 4;

// Not atomic on purpose: launches on one stream run one after the other, so no increment may be lost.
__global__ void increment(unsigned* counter) {
    *counter += 1;
}

void launch_many(cudaStream_t stream, unsigned* counter, int launches) {
    for (int i = 0; i < launches; i++) {
        increment<<<1, 1, 0, stream>>>(counter);
        CUDA_OK(cudaGetLastError());
        if (i % 50 == 0) {
            void* scratch = nullptr;
            CUDA_OK(cudaMalloc(&scratch, 1000 + 100 * i));
            CUDA_OK(cudaMemsetAsync(scratch, i, 1000, stream));
            CUDA_OK(cudaFree(scratch));
        }
    }
    CUDA_OK(cudaStreamSynchronize(stream));
}

template <class StreamOf, class CounterOf>
void run_threads(StreamOf stream_of, CounterOf counter_of, int launches) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreadCount; t++) {
        threads.emplace_back(launch_many, stream_of(t), counter_of(t), launches);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int launches = static_cast<int>(number_argument(argc, argv, 1, 300));
    unsigned* counters = nullptr;
    CUDA_OK(cudaMalloc(&counters, (kThreadCount + 2) * sizeof(unsigned)));
    CUDA_OK(cudaMemset(counters, 0, (kThreadCount + 2) * sizeof(unsigned)));
    CUDA_OK(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(kThreadCount);
    for (cudaStream_t& stream : streams) {
        CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    run_threads([&](int t) { return streams[t]; }, [&](int t) { return counters + t; }, launches);
    run_threads([&](int) { return streams[0]; }, [&](int) { return counters + kThreadCount; }, launches);
    run_threads([&](int) { return cudaStreamLegacy; }, [&](int) { return counters + kThreadCount + 1; }, launches);

    std::vector<unsigned> seen(kThreadCount + 2);
    CUDA_OK(cudaMemcpy(seen.data(), counters, seen.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (int t = 0; t < kThreadCount; t++) {
        check(seen[t] == static_cast<unsigned>(launches), "thread %d, own stream: %u of %d launches", t, seen[t],
              launches);
    }
    check(seen[kThreadCount] == static_cast<unsigned>(kThreadCount * launches), "all on one stream: %u of %d launches",
          seen[kThreadCount], kThreadCount * launches);
    check(seen[kThreadCount + 1] == static_cast<unsigned>(kThreadCount * launches),
          "all on the legacy stream: %u of %d launches", seen[kThreadCount + 1], kThreadCount * launches);
    for (cudaStream_t stream : streams) {
        CUDA_OK(cudaStreamDestroy(stream));
    }
    CUDA_OK(cudaFree(counters));
    return finish("multi_thread");
}
