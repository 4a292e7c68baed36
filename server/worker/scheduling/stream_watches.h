// The streams that the client is told the end of (gpStreamWatch). The driver is asked for them now and then, as
// cuStreamQuery asks: a mark behind their work would wait, in a blocking stream, for the legacy stream as well.
//
// Threads: the dispatcher's alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "server/worker/dispatch/command.h"

namespace gpupool::worker {

class Worker;

class StreamWatches {
  public:
    explicit StreamWatches(Worker& worker) : worker_(worker) {}

    [[nodiscard]] bool empty() const { return watches_.empty(); }

    // `command` asked for it. One that is watched already is not watched twice.
    void add(const StreamName& stream, std::uint64_t command) {
        if (std::none_of(watches_.begin(), watches_.end(),
                         [&](const Watch& watch) { return watch.stream == stream; })) {
            watches_.push_back({stream, command});
        }
    }
    // Looks at them now and then, and tells the client of those that have ended. True when one has.
    bool poll();
    // How one ended: with success, or else the client has to ask.
    void tell(const StreamName& stream, std::uint64_t command, CUresult result);

  private:
    // To ask takes the driver a fraction of a microsecond and the locks that launches take.
    static constexpr std::chrono::microseconds kLeast{5}, kEach{3};

    struct Watch {
        StreamName stream;
        std::uint64_t command;
    };
    bool ended(const Watch& watch);

    Worker& worker_;
    std::vector<Watch> watches_;
    std::chrono::steady_clock::time_point polled_{};
};

}  // namespace gpupool::worker
