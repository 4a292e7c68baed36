// Threads that give launches of several streams to the driver at once.
//
// A driver takes 2.4 us a launch from one thread and 1.2 us from four with a stream each (measured), so where launches
// for several streams come mixed and in numbers, the dispatcher hands them out: those of a stream to one issuer, in
// their order, and those of some streams to nobody: they stay its own. Nothing but launches that depend on their stream
// alone is handed out, and before the dispatcher does anything else it waits until they are issued, with settle(). So
// the order of everything else is the dispatcher's, as without issuers, and launches of streams that know nothing of
// each other have none.
//
// The driver does not block a launch that its stream has credit for (scheduler.h), so settle() takes as long as the
// launches that are left: kMaxWaiting for each issuer.
//
// Ownership: an issuer owns what was handed to it. Threads: all methods the dispatcher's. Errors: settle() returns
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/spin.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/scheduling/kernel_launch.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

class Issuers {
  public:
    static constexpr std::size_t kMaxThreads = 8;
    static constexpr std::uint32_t kMaxWaiting = 128;  // launches that one of them was handed

    struct Failure {
        Command command;
        KernelLaunch launch;
        CUresult result;
    };

    // Threads are started when they are first needed. 0: nothing is ever handed out.
    Issuers(const driver::Api& api, std::size_t threads) : api_(api), most_(threads) {}
    ~Issuers() { stop(); }

    // A launch for `stream` came, with `more` behind it that is here already: is it to be handed out?
    bool takes(StreamState& stream, bool more);
    // It is issued by the issuer of its stream, some time before settle() returns, and after it `mark` is written to
    // the stream's word (Scheduler::issued_elsewhere); 0: nothing is.
    void hand_out(const StreamState& stream, const Command& command, KernelLaunch launch, std::uint32_t mark);
    // Was anything handed out since settle()? Anything of `stream`?
    [[nodiscard]] bool busy() const { return busy_; }
    [[nodiscard]] bool busy_with(const StreamState& stream) const { return busy_ && stream.issuer > 0; }
    // Returns when all is issued, with what failed.
    [[nodiscard]] std::vector<Failure> settle();
    // A context ends, and its driver handle may come again for another.
    void forget_contexts() { ++contexts_ended_; }
    // Nothing more is issued.
    void stop();

  private:
    struct Job {
        Command command;
        KernelLaunch launch;
        std::uint32_t mark = 0;
        CUdeviceptr mark_word = 0;
        CUcontext context = nullptr;
        std::uint32_t contexts_ended = 0;
    };
    // A ring of one writer, the dispatcher, and one reader.
    struct Issuer {
        std::array<Job, kMaxWaiting> ring;
        alignas(64) std::atomic<std::uint32_t> handed{0};
        alignas(64) std::atomic<std::uint32_t> done{0};
        Spin waiting_for_done;  // the dispatcher's
        std::thread thread;
    };

    // How mixed launches are: of kMixedScale all of the last kMixedOver or so came for another stream than the one
    // before. Threads that launch at the same time come in bursts of dozens each.
    static constexpr unsigned kMixedScale = 1u << 20, kMixedOver = 256, kMixedEnough = kMixedScale / 64;

    bool start(std::size_t count);
    static void wait_for(Issuer& issuer, std::uint32_t done);
    void serve(Issuer& issuer);
    void issue(Job& job, CUcontext& current, std::uint32_t& contexts_ended);

    const driver::Api& api_;
    std::size_t most_;
    std::vector<std::unique_ptr<Issuer>> issuers_;
    std::size_t next_place_ = 0;
    const StreamState* last_ = nullptr;  // only compared
    unsigned mixed_ = 0;
    std::uint32_t contexts_ended_ = 0;
    bool busy_ = false;
    std::atomic<bool> stopping_{false};

    Mutex failures_mutex_;
    std::vector<Failure> failures_ GP_GUARDED_BY(failures_mutex_);
};

}  // namespace gpupool::worker
