// Streams whose completion the client is to be notified of (gpStreamWatch). The dispatcher queries the driver for them
// at intervals, as cuStreamQuery does. It makes no marks for this: a mark in a blocking stream would also wait for work
// of the legacy stream.
//
// Threads: the dispatcher's alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "server/worker/dispatch/answers.h"
#include "server/worker/scheduling/scheduler.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

class StreamWatches {
  public:
    StreamWatches(Objects& objects, Scheduler& scheduler, Answers& answers, TimeSource& clock)
        : objects_(objects), scheduler_(scheduler), answers_(answers), clock_(clock) {}

    [[nodiscard]] bool empty() const { return watches_.empty(); }

    // `command` is the number of the command that asked for it. A stream that is watched already is not added again.
    void add(const StreamName& stream, std::uint64_t command) {
        if (std::none_of(watches_.begin(), watches_.end(),
                         [&](const Watch& watch) { return watch.stream == stream; })) {
            watches_.push_back({stream, command});
        }
    }
    // Queries the streams if it is time to, and notifies the client of those that are complete. True if one is.
    bool poll();
    // Notifies the client that the stream is complete (success), or that the client has to query it (any other result).
    void notify(const StreamName& stream, std::uint64_t command, CUresult result);

  private:
    // The least interval, and how much of it per stream: a query takes a fraction of a microsecond and the driver's
    // locks that launches take.
    static constexpr std::chrono::microseconds kLeast{5}, kEach{3};

    struct Watch {
        StreamName stream;
        std::uint64_t command;
    };
    bool ended(const Watch& watch);

    Objects& objects_;
    Scheduler& scheduler_;
    Answers& answers_;
    TimeSource& clock_;
    std::vector<Watch> watches_;
    TimeSource::TimePoint polled_{};
};

}  // namespace gpupool::worker
