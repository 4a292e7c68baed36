// The server's part of a timeline: makes the worker record what it does, relates the worker's clock to the client's,
// and draws the worker's records (protocol/codec/trace_records.h).
//
// The clocks are related by timed exchanges: the worker reads its clock between the sending of a request and the
// arrival of the reply. The estimate is the range of offsets that all exchanges allow, widened by the possible drift
// since.
//
// Ownership: refers to the timeline.
// Threads: start(), synchronize(), flush() and missing() any; take_*() only the receiving thread.
// Errors: take_*() return false for invalid records, which are a protocol violation.
// Units: nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "client/core/tracing/timeline.h"
#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/reasons.h"
#include "protocol/codec/trace_records.h"

namespace gpupool::client {

class ClockMap {
  public:
    static constexpr double kDrift = 1e-4;  // bound on the drift: seconds per second

    // Held while an exchange is added, the reading of `after_ns` included: exchanges are added in the order of time.
    Mutex adding;
    // Adds an exchange: the worker's clock read `theirs_ns` between these two times of the client's clock.
    void add(std::uint64_t before_ns, std::uint64_t theirs_ns, std::uint64_t after_ns) GP_REQUIRES(adding);
    // Needs no lock.
    [[nodiscard]] std::uint64_t to_ours(std::uint64_t theirs_ns) const;
    // Half of the range in which the offset lies.
    [[nodiscard]] std::uint64_t uncertainty_ns() const GP_REQUIRES(adding);

  private:
    // The worker's clock minus the client's. A single atomic, so that the receiving thread reads it whole.
    std::atomic<std::int64_t> offset_ns_{0};
    std::int64_t low_ns_ GP_GUARDED_BY(adding) = 0, high_ns_ GP_GUARDED_BY(adding) = 0;
    std::uint64_t added_ns_ GP_GUARDED_BY(adding) = 0;  // time of the latest exchange; 0: none yet
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

    // Call first. False if the session is lost.
    bool start(const Calls& calls);
    void synchronize(int exchanges);
    void flush();

    // False if the records are invalid.
    bool take_records(std::span<std::byte> body);
    bool take_name(std::span<std::byte> body);

    // A text for the user about the records that the worker omitted; empty if there are none.
    [[nodiscard]] std::string missing() const;

  private:
    void draw(const codec::TraceRecord& record);

    Timeline& timeline_;
    Calls calls_{};
    ClockMap clock_;
    std::unordered_map<std::uint32_t, std::string> kernels_;        // names, escaped for JSON
    std::unordered_map<std::uint64_t, std::uint64_t> last_end_ns_;  // by track
    std::size_t names_ = 0;
    std::atomic<std::uint64_t> dropped_commands_{0}, dropped_gpu_work_{0};
};

}  // namespace gpupool::client
