// Looks after launched graphs whose nodes need the client: when the GPU says that a node's turn has come, the client is
// asked, and when it has done its part the GPU goes on.
//
// Threads: the dispatcher's alone; `flying` counts are let go by the channel's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/worker/graphs/graph_exec.h"

namespace gpupool::worker {

class Worker;

class GraphTurns {
  public:
    explicit GraphTurns(Worker& worker) : worker_(worker) {}

    // A launch with these turns begins, or has ended.
    void begin(const std::shared_ptr<HostTurns>& turns);
    void end(const std::shared_ptr<HostTurns>& turns);
    // The latest that began has failed: the driver did not take it.
    void cancel(const std::shared_ptr<HostTurns>& turns);
    // Takes the turns that have come; true when anything moved.
    bool poll();
    // Is there a launch with turns that is not known to have ended?
    [[nodiscard]] bool running() const { return !running_.empty(); }
    // The client's function of this ticket has returned. False when no graph has it.
    bool function_done(std::uint64_t ticket);

  private:
    bool poll(HostTurn& turn, bool running);
    void start(HostTurn& turn);
    bool go_on(HostTurn& turn);
    static void finish(HostTurn& turn);

    Worker& worker_;
    std::uint64_t next_ticket_ = 1;
    // Those of launches, and those whose launch has failed while data was on its way to or from their memory.
    std::vector<std::shared_ptr<HostTurns>> running_;
    std::unordered_map<std::uint64_t, HostTurn*> functions_;  // that the client runs now
};

}  // namespace gpupool::worker
