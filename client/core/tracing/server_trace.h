// The server's part of a timeline: asks the worker to record what it does, relates its clock to ours, and draws what it
// says (protocol/codec/trace_records.h).
//
// The clocks are related by timed exchanges: the worker's time lies between the sending of a question and the coming of
// its answer. What all exchanges allow together is kept, widened by what clocks may drift between them.
//
// Ownership: refers to the timeline. Threads: start(), synchronize(), flush() and missing() any; take_*() the
//   channel's receiving thread. Errors: records that make no sense are the server's violation.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "client/core/tracing/timeline.h"
#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/trace_records.h"

namespace gpupool::client {

class ClockMap {
  public:
    static constexpr double kDrift = 1e-4;  // clocks differ by no more than so many seconds in one

    // `theirs_ns` was read between the two moments of ours.
    void add(std::uint64_t before_ns, std::uint64_t theirs_ns, std::uint64_t after_ns);
    [[nodiscard]] std::uint64_t to_ours(std::uint64_t theirs_ns) const;
    // Half of what is not known of the offset.
    [[nodiscard]] std::uint64_t uncertainty_ns() const;

  private:
    // Of their clock less ours; one value, so that the receiving thread reads it whole.
    std::atomic<std::int64_t> offset_ns_{0};
    std::int64_t low_ns_ = 0, high_ns_ = 0;
    std::uint64_t added_ns_ = 0;  // when; 0: never
};

class ServerTrace {
  public:
    // The worker's calls (protocol/calls/internal.h).
    struct Calls {
        CUresult (*start)();
        CUresult (*clock)(std::uint64_t* now_ns);
        CUresult (*flush)();
    };
    explicit ServerTrace(Timeline& timeline) : timeline_(timeline) {}

    // First, and before anything else is called. False when the session is lost.
    bool start(const Calls& calls);
    void synchronize(int exchanges);
    void flush();

    // False: no server says that.
    bool take_records(std::span<std::byte> body);
    bool take_name(std::span<std::byte> body);

    // What the worker left out, for a person; empty: nothing.
    [[nodiscard]] std::string missing() const;

  private:
    void draw(const codec::TraceRecord& record);

    Timeline& timeline_;
    Calls calls_{};
    Mutex mutex_;  // of what clock_ is made from
    ClockMap clock_;
    std::unordered_map<std::uint32_t, std::string> kernels_;        // as JSON has them
    std::unordered_map<std::uint64_t, std::uint64_t> last_end_ns_;  // by track
    std::size_t names_ = 0;
    std::atomic<std::uint64_t> dropped_commands_{0}, dropped_gpu_work_{0};
};

}  // namespace gpupool::client
