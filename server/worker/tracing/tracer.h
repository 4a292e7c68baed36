// Records what the worker does while its session is traced: the dispatcher's commands, the helpers' driver calls, and
// when the GPU worked for each stream. When tracing is off each place costs one branch.
//
// GPU work is measured by two timing events around it in its stream, which are read when both are complete. They never
// enter a capture. An anchor per context relates them to the worker's clock: an event on a stream of the tracer's whose
// completion was observed on both clocks. It is renewed every second, which keeps the clocks' drift small.
//
// Limits: kMaxPending pieces of GPU work that are not complete; kRecordsPerSecond, with a burst of kBurst, for records
//   that are sent; codec::kMaxTraceNames names. Records beyond these are dropped and counted, and the count is sent to
//   the client.
// Ownership: the worker owns the tracer, which owns its events.
// Threads: the dispatcher's, except the helper's part of a job that wrap() made.
// Units: nanoseconds.
// Errors: a context whose driver calls fail is not traced any further.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "protocol/codec/record.h"
#include "protocol/codec/trace_records.h"
#include "server/driver/api.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

class Tracer {
    // A moment known on both clocks.
    struct Anchor {
        CUevent event = nullptr;
        double at_ns = 0;
        std::size_t users = 0;  // pieces of work that refer to it
    };

  public:
    using Enter = std::function<void(const ContextState*)>;
    using Send = std::function<void(codec::NoticeType, const void*, std::size_t)>;
    static constexpr std::size_t kMaxPending = 4096;
    static constexpr double kRecordsPerSecond = 100'000, kBurst = 200'000;
    // How long a flush waits for GPU work.
    static constexpr std::chrono::milliseconds kFlushTimeout{200};

    // `enter` makes a context current.
    Tracer(const driver::Api& api, Enter enter, Send send, TimeSource& clock = TimeSource::system())
        : api_(api), enter_(std::move(enter)), send_(std::move(send)), clock_(clock) {}

    [[nodiscard]] bool on() const { return on_; }
    void start();
    [[nodiscard]] std::uint64_t now_ns() const;

    // Sends records that are due and reads complete GPU work; true if anything moved.
    bool poll();
    // Does poll() have anything to wait for?
    [[nodiscard]] bool waiting() const { return !records_.empty() || pending_ != 0 || flush_done_ != nullptr; }
    // Runs `done` when everything recorded so far has been sent. One flush at a time: a second one is done at once.
    void flush(std::function<void()> done);

    // A stream is about to be forgotten, or a context destroyed: releases their events.
    void forget(const StreamState& stream);
    void forget(const ContextState& context);

    // Records, by its lifetime, how long the dispatcher works on a command. Inside another Issue it counts as part of
    // that.
    class Issue {
      public:
        // `waited_for`: why it was queued last; none: it was not queued.
        Issue(Tracer& tracer, const codec::CommandHeader& header, codec::Reason waited_for) {
            if (tracer.on()) [[unlikely]] {
                begin(tracer, header, waited_for);
            }
        }
        ~Issue() {
            if (tracer_ != nullptr) [[unlikely]] {
                end();
            }
        }
        Issue(const Issue&) = delete;
        Issue& operator=(const Issue&) = delete;

        // The command was not given to the driver.
        void queued() { record_.flags |= codec::kTraceQueued; }

      private:
        void begin(Tracer& tracer, const codec::CommandHeader& header, codec::Reason waited_for);
        void end();
        Tracer* tracer_ = nullptr;
        codec::TraceRecord record_{};
        std::uint64_t driver_ns_ = 0;
    };

    // Records the GPU work that a stream is given between construction and end(), for the command that is being issued.
    // The stream's context must be current. Without end(), or with an error, nothing is recorded.
    class Work {
      public:
        Work(Tracer& tracer, const StreamState& stream, codec::TraceKind kind, std::uint64_t bytes = 0) {
            if (tracer.on()) [[unlikely]] {
                begin(tracer, stream, kind, bytes);
            }
        }
        ~Work() {
            if (tracer_ != nullptr) [[unlikely]] {
                cancel();
            }
        }
        Work(const Work&) = delete;
        Work& operator=(const Work&) = delete;

        // Names the kernel: the client's handle, which may be a kernel's, and the driver's.
        void name(CUfunction client, CUfunction function) {
            if (tracer_ != nullptr) [[unlikely]] {
                record_.name = tracer_->kernel_name(client, function);
            }
        }
        void end(CUresult result) {
            if (tracer_ != nullptr && result == CUDA_SUCCESS) [[unlikely]] {
                finish();
            }
        }

      private:
        void begin(Tracer& tracer, const StreamState& stream, codec::TraceKind kind, std::uint64_t bytes);
        void finish();
        void cancel();
        Tracer* tracer_ = nullptr;
        const StreamState* stream_ = nullptr;
        CUevent start_ = nullptr;
        std::shared_ptr<Anchor> anchor_;
        codec::TraceRecord record_{};
    };

    // Wraps a helper's job so that it is recorded as part of the current command.
    using Job = std::function<void()>;
    void wrap(Job& work, Job& done);

  private:
    struct Span {
        CUevent start, end;
        std::shared_ptr<Anchor> anchor;
        codec::TraceRecord record;
    };
    struct OfStream {
        std::uint32_t track = 0;
        std::deque<Span> spans;
        std::uint64_t last_end_ns = 0;
    };
    struct OfContext {
        const ContextState* context = nullptr;
        bool failed = false;
        CUstream stream = nullptr;  // the tracer's, for anchors
        std::shared_ptr<Anchor> anchor;
        std::uint64_t anchored_ns = 0;
        std::vector<CUevent> spare;
        std::unordered_map<const StreamState*, OfStream> streams;
    };

    OfContext* context_of(const StreamState& stream);
    bool renew_anchor(OfContext& context);
    CUevent take_event(OfContext& context);
    bool read(OfContext& context, OfStream& stream);
    std::optional<std::uint64_t> moment(const Span& span, CUevent event) const;
    std::uint32_t track_of(OfStream& stream, const StreamState& state);
    std::uint32_t kernel_name(CUfunction client, CUfunction function);
    std::uint32_t send_name(std::string_view text, bool is_track);
    void fail(OfContext& context);
    void release(OfContext& context, Span& span);
    static void release(OfContext& context, const std::shared_ptr<Anchor>& anchor);
    bool may_record(std::uint64_t& dropped);
    void add(const codec::TraceRecord& record);
    void send();

    const driver::Api& api_;
    const Enter enter_;
    const Send send_;
    TimeSource& clock_;
    bool on_ = false;
    const codec::TraceRecord* current_ = nullptr;  // of the command that is being issued
    codec::TraceHeader dropped_{};
    std::vector<codec::TraceRecord> records_;
    std::uint64_t first_ns_ = 0;  // when the oldest of `records_` was added
    double allowance_ = kBurst;   // records that may be made now
    std::uint64_t allowed_ns_ = 0;
    std::size_t pending_ = 0;
    std::uint64_t read_ns_ = 0;  // when GPU work was last polled
    std::unordered_map<const ContextState*, OfContext> contexts_;
    std::uint32_t names_ = 0;
    std::unordered_map<CUfunction, std::uint32_t> kernels_;  // by client handle, which is never reused
    std::function<void()> flush_done_;
    std::uint64_t flush_until_ns_ = 0;
};

}  // namespace gpupool::worker
