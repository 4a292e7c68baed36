// Threads that issue launches of several streams to the driver in parallel.
//
// A driver takes 2.4 us for a launch from one thread and 1.2 us from four threads with a stream each (measured). So
// when many launches arrive and successive ones are for different streams, the dispatcher hands them out. All launches
// of one stream go to the same issuer, in order; the launches of some streams stay with the dispatcher. Only launches
// that depend on nothing but their stream are handed out, and before it does anything else the dispatcher waits in
// drain() until they are issued. So the order of all other work is the same as without issuers, and launches of
// independent streams have no order among them.
//
// The driver does not block a launch for which its stream has credit (scheduler.h). So drain() takes no longer than
// the launches that are left: at most kMaxWaiting for each issuer.
//
// Ownership: an issuer owns what was handed to it.
// Threads: all methods are the dispatcher's.
// Errors: drain() reports them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/spin.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/gate/submission.h"
#include "server/worker/scheduling/kernel_launch.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

class Issuers {
  public:
    static constexpr std::size_t kMaxThreads = 8;
    static constexpr std::uint32_t kMaxWaiting = 128;  // capacity of an issuer's queue, in launches

    struct Failure {
        Command command;
        KernelLaunch launch;
        CUresult result;
    };

    // Threads start when they are first needed. With 0 threads nothing is handed out. drain() calls `failed` for each
    // launch that failed.
    Issuers(const driver::Api& api, std::size_t threads, std::function<void(const Failure&)> failed)
        : api_(api), most_(threads), failed_(std::move(failed)) {}
    ~Issuers() { stop(); }

    // Should this launch for `stream` be handed out? `more`: further launches behind it have already arrived.
    bool takes(StreamState& stream, bool more);
    // Hands a launch to its stream's issuer, which issues it before drain() returns and then writes the mark that is
    // due (Submission::end_elsewhere).
    void hand_out(Submission submission, const Command& command, KernelLaunch launch);
    // Was anything handed out since drain()? Is `stream` also one that an issuer serves?
    [[nodiscard]] bool busy() const { return busy_; }
    [[nodiscard]] bool busy_with(const StreamState& stream) const { return busy_ && stream.issuer > 0; }
    // Returns when all is issued.
    void drain() {
        if (busy_) [[unlikely]] {
            wait_for_all();
        }
    }
    // A context ends: the driver may reuse its handle for another.
    void forget_contexts() { ++contexts_ended_; }
    // Ends the threads. Launches that are still queued are not issued.
    void stop();

  private:
    struct Job {
        Command command;
        KernelLaunch launch;
        std::optional<Submission::Lent> permit;
        std::uint32_t mark = 0;
        CUdeviceptr mark_word = 0;
        CUcontext context = nullptr;
        std::uint32_t contexts_ended = 0;
    };
    // A ring buffer with one writer, the dispatcher, and one reader, the issuer.
    struct Issuer {
        std::array<Job, kMaxWaiting> ring;
        alignas(64) std::atomic<std::uint32_t> handed{0};
        alignas(64) std::atomic<std::uint32_t> done{0};
        Spin waiting_for_done;  // used by the dispatcher
        std::thread thread;
    };

    // `mixed_` is a moving average, over about kMixedOver launches, of how many were for another stream than the launch
    // before; kMixedScale means all. Launches are handed out from kMixedEnough on, one in 64: threads that launch at
    // the same time produce bursts of dozens each.
    static constexpr unsigned kMixedScale = 1u << 20, kMixedOver = 256, kMixedEnough = kMixedScale / 64;

    void wait_for_all();
    bool start(std::size_t count);
    static void wait_for(Issuer& issuer, std::uint32_t done);
    void serve(Issuer& issuer);
    void issue(Job& job, CUcontext& current, std::uint32_t& contexts_ended);

    const driver::Api& api_;
    std::size_t most_;
    const std::function<void(const Failure&)> failed_;
    std::vector<std::unique_ptr<Issuer>> issuers_;
    std::size_t next_place_ = 0;
    const StreamState* last_ = nullptr;  // only compared, never dereferenced
    unsigned mixed_ = 0;
    std::uint32_t contexts_ended_ = 0;
    bool busy_ = false;
    std::atomic<bool> stopping_{false};

    Mutex failures_mutex_;
    std::vector<Failure> failures_ GP_GUARDED_BY(failures_mutex_);
};

}  // namespace gpupool::worker
