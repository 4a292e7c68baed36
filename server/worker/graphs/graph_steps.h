// Executes the client steps of launched graphs: polls for steps that the GPU has reached, asks the client to do its
// part, and lets the GPU go on when the client has done it.
//
// Threads: the dispatcher's alone; the channel's thread decrements `flying` counts.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/worker/dispatch/answers.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/graphs/graph_exec.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/transfers/host_traffic.h"
#include "server/worker/transfers/incoming.h"

namespace gpupool::worker {

class GraphSteps {
  public:
    GraphSteps(Answers& answers, Incoming& incoming, const HostMirrors& host_mirrors, HostTraffic& traffic,
               Inbox& inbox)
        : answers_(answers), incoming_(incoming), host_mirrors_(host_mirrors), traffic_(traffic), inbox_(inbox) {}

    // A launch with these steps begins, or has ended.
    void begin(const std::shared_ptr<ClientSteps>& steps);
    void end(const std::shared_ptr<ClientSteps>& steps);
    // The launch that began last has failed: the driver refused it.
    void cancel(const std::shared_ptr<ClientSteps>& steps);
    // Begins steps that the GPU has reached and continues others; true if anything moved.
    bool poll();
    // Is there a launch with steps that is not known to have ended?
    [[nodiscard]] bool running() const { return !running_.empty(); }
    // The client's function of this ticket has returned. False if no graph has the ticket.
    bool function_done(std::uint64_t ticket);

  private:
    bool poll(ClientStep& step, bool running);
    void start(ClientStep& step);
    bool go_on(ClientStep& step);
    static void finish(ClientStep& step);

    Answers& answers_;
    Incoming& incoming_;
    const HostMirrors& host_mirrors_;
    HostTraffic& traffic_;
    Inbox& inbox_;
    std::uint64_t next_ticket_ = 1;
    // Steps of launches that run, and steps of failed launches while data is on its way to or from their memory.
    std::vector<std::shared_ptr<ClientSteps>> running_;
    std::unordered_map<std::uint64_t, ClientStep*> functions_;  // functions that the client runs now, by ticket
};

}  // namespace gpupool::worker
