// Pinned memory that the GPU can use, and addresses of host memory as the driver takes them.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include <cstring>

#include "tests/gpu/driver.h"

namespace gpupool::programs {

inline CUdeviceptr address_of(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

// A block of words, zero at first.
class Pinned {
  public:
    explicit Pinned(size_t words, unsigned flags = CU_MEMHOSTALLOC_DEVICEMAP) : words_(words) {
        DRIVER_OK(cuMemHostAlloc(reinterpret_cast<void**>(&memory_), words * sizeof(unsigned), flags));
        std::memset(memory_, 0, words * sizeof(unsigned));
    }
    ~Pinned() { DRIVER_OK(cuMemFreeHost(memory_)); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

    [[nodiscard]] unsigned* get() const { return memory_; }
    unsigned& operator[](size_t i) const { return memory_[i]; }
    // Where the GPU sees it.
    [[nodiscard]] CUdeviceptr device() const {
        CUdeviceptr pointer = 0;
        DRIVER_OK(cuMemHostGetDevicePointer(&pointer, memory_, 0));
        return pointer;
    }
    // How many words differ.
    [[nodiscard]] size_t differ(unsigned expected) const {
        size_t wrong = 0;
        for (size_t i = 0; i < words_; i++) {
            wrong += memory_[i] != expected;
        }
        return wrong;
    }

  private:
    size_t words_;
    unsigned* memory_ = nullptr;
};

}  // namespace gpupool::programs
