// Built with --default-stream per-thread, so each host thread has its own default stream. Two threads check it: the
// kernel on the first one's default stream ends only when a kernel on the second one's runs concurrently. Argument:
// elements per thread.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

constexpr int kThreadCount = 4;

__global__ void wait_for_flag(const volatile int* flag, int* outcome) {
    *outcome = spin_until_set(flag);
}

__global__ void set_flag(volatile int* flag) {
    *flag = 1;
}

__global__ void add(int* data, int count, int value) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += value;
    }
}

void overlap(int* words) {
    // The release is launched second: if both threads had the same default stream, it would wait behind the waiting
    // kernel.
    std::atomic<bool> waiting{false};
    std::thread waiter([words, &waiting] {
        wait_for_flag<<<1, 1>>>(words, words + 1);
        CUDA_OK(cudaGetLastError());
        waiting.store(true);
        CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    });
    std::thread releaser([words, &waiting] {
        while (!waiting.load()) {
            std::this_thread::yield();
        }
        set_flag<<<1, 1>>>(words);
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaStreamSynchronize(0));
    });
    waiter.join();
    releaser.join();
    int seen[2] = {};
    CUDA_OK(cudaMemcpy(seen, words, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen[1] == 1, "default streams of two threads overlap (the waiting kernel saw %d)", seen[1]);
}

void one_thread(int index, int count, int rounds, int* wrong) {
    const size_t bytes = count * sizeof(int);
    std::vector<int> host(count, index);
    int* device = nullptr;
    CUDA_OK(cudaMalloc(&device, bytes));
    CUDA_OK(cudaMemcpyAsync(device, host.data(), bytes, cudaMemcpyHostToDevice));
    for (int round = 0; round < rounds; round++) {
        add<<<(count + 63) / 64, 64>>>(device, count, round + index);
        CUDA_OK(cudaGetLastError());
    }
    CUDA_OK(cudaMemcpyAsync(host.data(), device, bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaStreamSynchronize(0));
    int expected = index;
    for (int round = 0; round < rounds; round++) {
        expected += round + index;
    }
    for (int value : host) {
        *wrong += value != expected;
    }
    CUDA_OK(cudaFree(device));
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int count = static_cast<int>(number_argument(argc, argv, 1, 1'000));
    int* words = nullptr;
    CUDA_OK(cudaMalloc(&words, 2 * sizeof(int)));
    CUDA_OK(cudaMemset(words, 0, 2 * sizeof(int)));
    set_flag<<<1, 1>>>(words);  // load every kernel before kernels wait for each other
    wait_for_flag<<<1, 1>>>(words, words + 1);
    add<<<1, 1>>>(words, 0, 0);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemset(words, 0, 2 * sizeof(int)));
    CUDA_OK(cudaDeviceSynchronize());
    overlap(words);

    int wrong[kThreadCount] = {};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreadCount; t++) {
        threads.emplace_back(one_thread, t, count, 20, &wrong[t]);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (int t = 0; t < kThreadCount; t++) {
        check(wrong[t] == 0, "thread %d on its own default stream: %d elements differ", t, wrong[t]);
    }
    CUDA_OK(cudaFree(words));
    return finish("per_thread_stream");
}
