// Parts of an executable graph that happen in the client (graph_exec.h).
//
// Ownership: an executable and its launches share its client steps, which share their pinned memory.
// Threads: as graph_exec.h says. Errors: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "protocol/codec/record.h"
#include "server/driver/api.h"
#include "server/worker/memory/pinned_memory.h"

namespace gpupool::worker {

// What a client step does.
struct StepWork {
    std::uint64_t function = 0;      // the name that the client gave it
    codec::GraphCopyNotice rows{};   // of the client's memory; `transfer` is set each time
    PinnedMemory::BlockPtr staging;  // packed rows
    std::uint64_t bytes = 0;
};

// A node of an executable graph that the client executes: a host function, or a copy of its memory.
struct ClientStep {
    enum class Kind { function, from_client, to_client };
    Kind kind = Kind::function;
    bool enabled = true;      // false: launches skip it
    bool any_number = false;  // a launch may execute it zero or more times: it is in a conditional node's graph
    std::shared_ptr<const StepWork> work;  // for future launches
    PinnedMemory::BlockPtr words;
    std::uint32_t* request = nullptr;  // the GPU writes 1 when the step begins
    std::uint32_t* done = nullptr;     // the GPU waits for 1, then clears it
    CUdeviceptr device_request = 0, device_done = 0;

    // The work of launches that have not reached this step, and the work under way; see graph_steps.h.
    std::deque<std::shared_ptr<const StepWork>> launched;
    std::shared_ptr<const StepWork> current;
    bool busy = false;
    bool confirming = false;  // all data is sent, and the client was asked to confirm its arrival
    std::uint64_t ticket = 0;
    std::uint64_t offset = 0;                       // of the data expected or sent so far
    std::shared_ptr<std::atomic<unsigned>> flying;  // pieces under way
};

// The client steps of one executable graph.
struct ClientSteps {
    std::vector<std::unique_ptr<ClientStep>> list;
    std::multimap<CUgraphNode, ClientStep*> by_node;  // nodes of the graph that the client knows
    unsigned running = 0;                             // launches that are not known to have ended
};

}  // namespace gpupool::worker
