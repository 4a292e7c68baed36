// Forks before CUDA was used: parent and both children work, at the same time.
#include "tests/programs/fork_programs.h"

using namespace gpupool::programs;

int child_work(int count) {
    const int sum = sum_on_device(count);
    check(sum == count * (count - 1) / 2, "child: sum of %d numbers is %d", count, sum);
    return finish("fork_before_cuda, child");
}

int main() {
    limit_seconds(120);
    const pid_t first = start_child([] { return child_work(1000); });
    const pid_t second = start_child([] { return child_work(2000); });
    const int sum = sum_on_device(3000);
    check(sum == 3000 * 2999 / 2, "parent: sum of 3000 numbers is %d", sum);
    check(child_succeeded(first), "first child");
    check(child_succeeded(second), "second child");
    check(sum_on_device(500) == 500 * 499 / 2, "parent: works after its children have gone");
    return finish("fork_before_cuda");
}
