// Forks after CUDA was used. In the child every call returns cudaErrorInitializationError and none hangs; the parent
// continues, also after the child's end; a program started by exec works.
#include <unistd.h>

#include "tests/programs/fork_programs.h"

using namespace gpupool::programs;

int child_work(int* device) {
    void* pointer = nullptr;
    check_error(cudaMalloc(&pointer, 1024), cudaErrorInitializationError, "child: an allocation");
    int value = 0;
    check_error(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost), cudaErrorInitializationError,
                "child: a copy from the parent's memory");
    check_error(cudaDeviceSynchronize(), cudaErrorInitializationError, "child: synchronizing");
    cudaStream_t stream = nullptr;
    check_error(cudaStreamCreate(&stream), cudaErrorInitializationError, "child: creating a stream");
    add_all<<<1, 1>>>(device, 0, device);
    check_error(cudaGetLastError(), cudaErrorInitializationError, "child: a launch");
    return finish("fork_after_cuda, child");
}

int main(int argc, char**) {
    limit_seconds(120);
    if (argc > 1) {
        const int sum = sum_on_device(700);
        check(sum == 700 * 699 / 2, "program started from the child: sum of 700 numbers is %d", sum);
        return finish("fork_after_cuda, executed");
    }
    const int value = 77;
    int* device = nullptr;
    CUDA_OK(cudaMalloc(&device, sizeof value));
    CUDA_OK(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
    check(sum_on_device(1000) == 1000 * 999 / 2, "parent: before the fork");

    const pid_t child = start_child([device] { return child_work(device); });
    check(sum_on_device(2000) == 2000 * 1999 / 2, "parent: while the child lives");
    check(child_succeeded(child), "the child's calls were refused");
    const pid_t executed = start_child([] {
        execl("/proc/self/exe", "fork_after_cuda", "--executed", static_cast<char*>(nullptr));
        return 127;
    });
    check(child_succeeded(executed), "a program that the child executed");

    int seen = 0;
    CUDA_OK(cudaMemcpy(&seen, device, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen == 77, "parent: its memory is as it was (%d)", seen);
    check(sum_on_device(3000) == 3000 * 2999 / 2, "parent: after the child has gone");
    CUDA_OK(cudaFree(device));
    return finish("fork_after_cuda");
}
