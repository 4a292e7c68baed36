// The streams that the client is told the end of (gpStreamWatch). The driver is asked for them now and then, as
// cuStreamQuery asks: a mark behind their work would wait, in a blocking stream, for the legacy stream as well.
//
// Threads: the dispatcher's alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "server/worker/command.h"

namespace gpupool::worker {

class StreamWatches {
  public:
    [[nodiscard]] bool empty() const { return streams_.empty(); }

    // One that is watched already is not watched twice.
    void add(const StreamName& stream) {
        if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
            streams_.push_back(stream);
        }
    }

    // `ended` says whether a stream's watch is over, and has told the client then. True when one is.
    template <class Ended>
    bool poll(Ended&& ended) {
        const auto now = std::chrono::steady_clock::now();
        if (streams_.empty() || now - polled_ < std::max(kLeast, kEach * static_cast<int>(streams_.size()))) {
            return false;
        }
        polled_ = now;
        return std::erase_if(streams_, std::forward<Ended>(ended)) != 0;
    }

  private:
    // To ask takes the driver a fraction of a microsecond and the locks that launches take.
    static constexpr std::chrono::microseconds kLeast{5}, kEach{3};

    std::vector<StreamName> streams_;
    std::chrono::steady_clock::time_point polled_{};
};

class Worker;

// The client hears how a stream's watch ended: with success, or else it has to ask.
void tell_of_stream(Worker& worker, const StreamName& stream, CUresult result);

// Looks at those that are watched; true when one has ended.
bool poll_stream_watches(Worker& worker);

}  // namespace gpupool::worker
