// Kernels that fail on purpose, in a module of their own: each poisons its context.
#include <cassert>

extern "C" {

__global__ void write_address(unsigned long long address) {
    *reinterpret_cast<volatile unsigned*>(address) = 1;
}

__global__ void trap_now() {
    __trap();
}

__global__ void assert_now(int value) {
    assert(value == 12345);
}

}  // extern "C"
