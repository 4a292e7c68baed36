// Ends the session, and knows why it ends.
//
// Threads: any.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "common/log.h"
#include "common/mutex.h"
#include "common/result.h"

namespace gpupool::worker {

class SessionEnd {
  public:
    // `ending` is called once, by the thread that ends the session.
    explicit SessionEnd(std::function<void()> ending) : ending_(std::move(ending)) {}

    // Ends the session. Only the first reason is kept.
    void stop(const std::string& why) {
        {
            const Lock lock(mutex_);
            if (!cause_) {
                cause_ = Error{ErrorCode::closed, why};
            }
        }
        if (!begun_.exchange(true)) {
            ending_();
        }
    }
    // The client broke the protocol or exceeded a limit: logs that and ends the session. Logs at once, because the
    // process may end before a client on a slow network has closed its connection.
    void refuse(const std::string& why) {
        if (!begun_) {
            log::warn("the session is ended: {}", why);
        }
        stop(why);
    }
    [[nodiscard]] bool begun() const { return begun_; }
    [[nodiscard]] Error cause() {
        const Lock lock(mutex_);
        return cause_.value_or(Error{ErrorCode::closed, "the session ended"});
    }

  private:
    const std::function<void()> ending_;
    Mutex mutex_;
    std::optional<Error> cause_ GP_GUARDED_BY(mutex_);
    std::atomic<bool> begun_{false};
};

}  // namespace gpupool::worker
