// The attributes of a function on each device. The client asks for all of them in one round trip and keeps the answer.
//
// A kernel has attributes on every device. A function that was obtained from a kernel shares the kernel's.
//
// Ownership: shared by all FunctionInfo that stand for the same function.
// Threads: any; reading known attributes takes no lock.
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
        // Gets all attributes from the server unless they are known. `function`: a function's or kernel's handle.
        CUresult load(CUfunction function, CUdevice device);
        // Values in the form in which load() gets them, all unknown; and those that another call's reply carried.
        using Values = std::array<int, CU_FUNC_ATTRIBUTE_MAX>;
        static Values unknown();
        void learn(const Values& values);
        // Call after load(). kUnknownAttribute if the driver does not know the attribute.
        [[nodiscard]] int get(CUfunction_attribute attribute) const {
            return values_[static_cast<std::size_t>(attribute)].load(std::memory_order_relaxed);
        }
        // The program has set an attribute.
        void set(CUfunction_attribute attribute, int value);
        // Some attributes may have changed: the next load() asks again.
        void forget();

        // ---- answers of the occupancy calculator, which depend only on the attributes and the question
        bool find_answer(const std::string& question, std::size_t& answer) const;
        void keep_answer(const std::string& question, std::size_t answer);

      private:
        static constexpr std::size_t kMaxAnswers = 4096;

        std::atomic<bool> known_{false};
        std::array<std::atomic<int>, CU_FUNC_ATTRIBUTE_MAX> values_{};
        mutable Mutex mutex_;
        std::map<std::string, std::size_t> answers_ GP_GUARDED_BY(mutex_);
    };

    // Null for an invalid device number.
    OnDevice* on(CUdevice device);
    void learn(CUdevice device, const OnDevice::Values& values);

  private:
    Mutex mutex_;
    std::array<std::atomic<OnDevice*>, kMaxDevices> by_device_{};
    std::vector<std::unique_ptr<OnDevice>> owned_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
