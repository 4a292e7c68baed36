// Who is told of what passes on a session's connections, for a trace.
//
// Threads: called by whichever thread sends or receives, several at a time, without a lock held. It must neither wait
//   nor call what it observes, and outlives it.
#pragma once

#include <chrono>
#include <cstddef>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

class TrafficObserver {
  public:
    using Moment = std::chrono::steady_clock::time_point;
    virtual ~TrafficObserver() = default;

    // A write of `frames`, headers included in `bytes`. Line 0 is the session's own connection, n + 1 is lane n.
    virtual void sent(std::size_t line, std::size_t frames, std::size_t bytes, Moment begin, Moment end) = 0;
    // A frame, from its header until its payload was taken.
    virtual void received(std::size_t line, FrameType type, std::size_t bytes, Moment begin, Moment end) = 0;
};

}  // namespace gpupool::wire
