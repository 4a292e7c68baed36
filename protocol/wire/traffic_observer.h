// An observer of the traffic on a session's connections, for a trace.
//
// Threads: called by the threads that send or receive, several at a time, without a lock held. It must neither block
// nor call the object that it observes, and must outlive it.
#pragma once

#include <chrono>
#include <cstddef>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

class TrafficObserver {
  public:
    using Moment = std::chrono::steady_clock::time_point;
    virtual ~TrafficObserver() = default;

    // A write of `frames`; `bytes` includes headers. Line 0 is the session's own connection, n + 1 is lane n.
    virtual void sent(std::size_t line, std::size_t frames, std::size_t bytes, Moment begin, Moment end) = 0;
    // A frame was received; from its header until its payload was processed.
    virtual void received(std::size_t line, FrameType type, std::size_t bytes, Moment begin, Moment end) = 0;
};

}  // namespace gpupool::wire
