// Keeps a stream busy for 20 ms by a host function, which then sets `over`.
//
// Ownership: outlives the host function. Threads: `over` from any. Errors: as in driver.h.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/driver.h"

namespace gpupool::programs {

struct Busy {
    std::atomic<bool> over{false};

    void start(CUstream stream) {
        over = false;
        DRIVER_OK(cuLaunchHostFunc(
            stream,
            [](void* self) {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                static_cast<Busy*>(self)->over = true;
            },
            this));
    }
};

}  // namespace gpupool::programs
