// Counts the allocations of the calling thread, through the hooks of a sanitizer's runtime. Without a sanitizer nothing
// is counted.
//
// Threads: any; each thread has its own count.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, std::size_t),
                                                         void (*freed)(const volatile void*)) __attribute__((weak));

namespace gpupool::test {

inline thread_local std::uint64_t allocations_of_thread = 0;

// Starts counting for the rest of the process. False where the sanitizer's hooks are missing.
inline bool count_allocations() {
    return __sanitizer_install_malloc_and_free_hooks != nullptr &&
           __sanitizer_install_malloc_and_free_hooks([](const volatile void*, std::size_t) { ++allocations_of_thread; },
                                                     [](const volatile void*) {}) != 0;
}

}  // namespace gpupool::test
