// Looks after launched graphs whose nodes need the client: when the GPU says that a node's step has come, the client is
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

class GraphSteps {
  public:
    explicit GraphSteps(Worker& worker) : worker_(worker) {}

    // A launch with these steps begins, or has ended.
    void begin(const std::shared_ptr<ClientSteps>& steps);
    void end(const std::shared_ptr<ClientSteps>& steps);
    // The latest that began has failed: the driver did not take it.
    void cancel(const std::shared_ptr<ClientSteps>& steps);
    // Takes the steps that have come; true when anything moved.
    bool poll();
    // Is there a launch with steps that is not known to have ended?
    [[nodiscard]] bool running() const { return !running_.empty(); }
    // The client's function of this ticket has returned. False when no graph has it.
    bool function_done(std::uint64_t ticket);

  private:
    bool poll(ClientStep& step, bool running);
    void start(ClientStep& step);
    bool go_on(ClientStep& step);
    static void finish(ClientStep& step);

    Worker& worker_;
    std::uint64_t next_ticket_ = 1;
    // Those of launches, and those whose launch has failed while data was on its way to or from their memory.
    std::vector<std::shared_ptr<ClientSteps>> running_;
    std::unordered_map<std::uint64_t, ClientStep*> functions_;  // that the client runs now
};

}  // namespace gpupool::worker
