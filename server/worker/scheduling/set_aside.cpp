#include "server/worker/scheduling/set_aside.h"

#include <algorithm>

#include "server/worker/dispatch/dispatch_table.h"
#include "server/worker/scheduling/scheduler.h"

namespace gpupool::worker {

bool SetAside::lets_pass(const codec::CommandHeader& header) const {
    switch (passage_of(header.opcode)) {
        case Passage::needs_no_driver: return true;
        // A queued command may give the same stream work, or record the event.
        case Passage::gets_in: return commands_.empty();
        case Passage::gets_in_first:
            return std::none_of(commands_.begin(), commands_.end(),
                                [&](const Command& other) { return other.header.thread == header.thread; });
        case Passage::none: break;
    }
    return false;
}

void SetAside::add(Command command) {
    commands_.push_back(std::move(command));
    if (commands_.size() >= Scheduler::kThrottleAt && !std::exchange(throttled_, true)) {
        throttle_(true);
    }
}

}  // namespace gpupool::worker
