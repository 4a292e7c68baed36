// Records what the worker does while its session is traced: the dispatcher's commands, the helpers' driver calls, and
// from when to when the GPU worked for each stream. Off, each place costs one branch.
//
// GPU work lies between two timing events of ours in its stream; they are read when they have passed, and never enter a
// capture. They are related to the worker's clock through an anchor per context: an event on a stream of our own whose
// moment was seen on both clocks, renewed every second so that the clocks' drift stays small.
//
// Limits: kMaxPending pieces of GPU work whose end is awaited, kRecordsPerSecond and a burst of kBurst in what is sent,
//   codec::kMaxTraceNames names. What is beyond is left out and counted, and the client is told the count.
// Ownership: the worker owns it, and it its events. Threads: the dispatcher's, but for what wrap() makes of a helper's
//   job. Units: nanoseconds. Errors: a context whose driver calls fail is traced no further.
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
        std::size_t users = 0;  // pieces of work that were begun with it
    };

  public:
    using Enter = std::function<void(const ContextState*)>;
    using Send = std::function<void(codec::NoticeType, const void*, std::size_t)>;
    static constexpr std::size_t kMaxPending = 4096;
    static constexpr double kRecordsPerSecond = 100'000, kBurst = 200'000;
    // How long a flush waits for GPU work.
    static constexpr std::chrono::milliseconds kFlushTimeout{200};

    // `enter` makes a context current.
    Tracer(const driver::Api& api, Enter enter, Send send)
        : api_(api), enter_(std::move(enter)), send_(std::move(send)) {}

    [[nodiscard]] bool on() const { return on_; }
    void start();
    static std::uint64_t now_ns();

    // Sends what is due and reads what has passed; true when something moved.
    bool poll();
    // Is there anything that poll() has to be called for?
    [[nodiscard]] bool waiting() const { return !records_.empty() || pending_ != 0 || flush_done_ != nullptr; }
    // Runs `done` when everything so far was sent. One at a time; a second is done at once.
    void flush(std::function<void()> done);

    // A stream is about to be forgotten, a context to be destroyed: their events go.
    void forget(const StreamState& stream);
    void forget(const ContextState& context);

    // While it lives, the dispatcher is busy with a command. Within another it is that one's.
    class Issue {
      public:
        Issue(Tracer& tracer, const codec::CommandHeader& header, bool was_held) {
            if (tracer.on()) [[unlikely]] {
                begin(tracer, header, was_held);
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
        void held() { record_.flags |= codec::kTraceHeld; }

      private:
        void begin(Tracer& tracer, const codec::CommandHeader& header, bool was_held);
        void end();
        Tracer* tracer_ = nullptr;
        codec::TraceRecord record_{};
        std::uint64_t driver_ns_ = 0;
    };

    // What a stream is given, between its construction and end(): of the command that is being issued. The stream's
    // context is current. Without end(), or with a failure, nothing was done.
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

        // What is launched: the client's handle, which may be a kernel's, and the driver's.
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

    // A helper's job, made to be recorded as the present command's.
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
        CUstream stream = nullptr;  // ours, for anchors
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
    std::uint32_t say_name(std::string_view text, bool is_track);
    void fail(OfContext& context);
    void release(OfContext& context, Span& span);
    static void release(OfContext& context, const std::shared_ptr<Anchor>& anchor);
    bool may_record(std::uint64_t& dropped);
    void add(const codec::TraceRecord& record);
    void send();

    const driver::Api& api_;
    const Enter enter_;
    const Send send_;
    bool on_ = false;
    const codec::TraceRecord* current_ = nullptr;  // of the command that is being issued
    codec::TraceHeader dropped_{};
    std::vector<codec::TraceRecord> records_;
    std::uint64_t first_ns_ = 0;  // when the oldest of `records_` came
    double allowance_ = kBurst;   // records that may be made now
    std::uint64_t allowed_ns_ = 0;
    std::size_t pending_ = 0;
    std::uint64_t read_ns_ = 0;  // when it was last asked what has passed
    std::unordered_map<const ContextState*, OfContext> contexts_;
    std::uint32_t names_ = 0;
    std::unordered_map<CUfunction, std::uint32_t> kernels_;  // by client handle, which is never used again
    std::function<void()> flush_done_;
    std::uint64_t flush_until_ns_ = 0;
};

}  // namespace gpupool::worker
