// The primary context that was made before the session began (prepared.h), so that the session's first call need not
// wait for it. It takes device memory, so it is released if the session makes another context first, or none in time.
//
// Threads: the dispatcher's.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "common/clock.h"
#include "server/worker/scheduling/waiting_calls.h"

namespace gpupool::worker {

class PreparedContext {
  public:
    // The device whose primary context it is.
    static constexpr CUdevice kDevice = 0;

    // `context`: retained once; null: none.
    PreparedContext(const driver::Api& api, WaitingCalls& waiting_calls, CUcontext context)
        : api_(api), waiting_calls_(waiting_calls), context_(context) {}

    [[nodiscard]] bool any() const { return context_ != nullptr; }
    // Hands it over with its one reference; null if there is none for the device, or none any more.
    CUcontext take(CUdevice device) { return device == kDevice ? std::exchange(context_, nullptr) : nullptr; }
    // Releases it and then calls `then`; false if there is none.
    bool give_back(std::function<void()> then) {
        if (take(kDevice) == nullptr) {
            return false;
        }
        waiting_calls_.run([&api = api_] { driver::call(api.cuDevicePrimaryCtxRelease_v2, kDevice); }, std::move(then));
        return true;
    }

  private:
    const driver::Api& api_;
    WaitingCalls& waiting_calls_;
    CUcontext context_;
};

}  // namespace gpupool::worker
