// A host function that keeps its stream busy until the test opens the latch.
//
// Ownership: outlives the function. Threads: any. Errors: the function ends after 20 seconds at the latest, so that a
// call which wrongly waits for it makes a check fail and not the program hang.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <semaphore>

namespace gpupool::programs {

class Latch {
  public:
    static void CUDA_CB wait(void* self) {
        auto& latch = *static_cast<Latch*>(self);
        latch.late_ = !latch.opened_.try_acquire_for(std::chrono::seconds(20));
        latch.over_ = true;
    }
    void open() { opened_.release(); }
    // Whether the function has ended, and whether it did so without open().
    bool over() const { return over_; }
    bool late() const { return late_; }

  private:
    std::binary_semaphore opened_{0};
    std::atomic<bool> over_{false}, late_{false};
};

}  // namespace gpupool::programs
