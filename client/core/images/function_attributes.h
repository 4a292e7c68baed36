// What the driver says of a function on a device: asked for once, all of it at once, and kept.
//
// A kernel has its attributes for every device; a function that was got from a kernel shares the kernel's.
//
// Ownership: shared by all FunctionInfo that mean the same function. Threads: any; reading what is known takes no lock.
// Errors: the driver's, of the call that asks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/call.h"

namespace gpupool::client {

class FunctionAttributes {
  public:
    static constexpr std::size_t kMaxDevices = 64;

    class OnDevice {
      public:
        // Asks for all attributes unless they are known. `function`: a function's or kernel's handle.
        CUresult load(CUfunction function, CUdevice device);
        // What load() would have got.
        using Values = std::array<int, CU_FUNC_ATTRIBUTE_MAX>;
        static Values unknown();
        void learn(const Values& values);
        // Of what load() has loaded; kUnknownAttribute where the driver did not say.
        [[nodiscard]] int get(CUfunction_attribute attribute) const {
            return values_[static_cast<std::size_t>(attribute)].load(std::memory_order_relaxed);
        }
        // One was set.
        void set(CUfunction_attribute attribute, int value);
        // Some may have changed: they are asked for again.
        void forget();

        // ---- answers of the occupancy calculator, which depend on nothing but the attributes and the question
        bool find_answer(const std::string& question, std::size_t& answer) const;
        void keep_answer(const std::string& question, std::size_t answer);

      private:
        static constexpr std::size_t kMaxAnswers = 4096;

        std::atomic<bool> known_{false};
        std::array<std::atomic<int>, CU_FUNC_ATTRIBUTE_MAX> values_{};
        mutable Mutex mutex_;
        std::map<std::string, std::size_t> answers_ GP_GUARDED_BY(mutex_);
    };

    // Null for a device that there cannot be.
    OnDevice* on(CUdevice device);
    void learn(CUdevice device, const OnDevice::Values& values);

  private:
    Mutex mutex_;
    std::array<std::atomic<OnDevice*>, kMaxDevices> by_device_{};
    std::vector<std::unique_ptr<OnDevice>> owned_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
