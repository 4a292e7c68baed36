// The internals of a Channel; only channel*.cpp include this.
//
//   channel.cpp          the public interface: start, attach, close
//   channel_send.cpp     appending, back-pressure, the pump
//   channel_receive.cpp  the reader and polling receivers
//
// Threads: `mutex` guards every member that is neither const nor documented otherwise. It is never held across a call
// of the connection (except copy_whole(), which only copies), of the Receiver or of a `done`. Two roles pass between
// threads. The thread that set `sending` may use the batch and send on `connection`; by setting `batch_left` it passes
// that role to the pump. The thread that holds `receiving`, which is locked before `mutex`, may receive and call the
// Receiver: the reader, or a thread that polls.
// Life: open -> (broken -> open by attach())* -> ended. `broken` exists only with Limits::resume.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "common/counting_condition.h"
#include "common/mutex.h"
#include "common/spin.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/frame_reader.h"
#include "protocol/wire/outbox.h"

namespace gpupool::wire {

// Why reading stopped. A peer that violates the protocol would do so again, so a new connection would not help.
struct Stop {
    Error cause;
    bool resumable = false;
};

// One gather write: headers are built here, payloads stay in their memory.
struct Batch {
    static constexpr std::size_t kMaxFrames = 64;
    static constexpr std::size_t kMaxBytes = 1u << 20;

    // Builds `buffers` from `frames`, or from a bare acknowledgement if there are none.
    void build(std::uint64_t acknowledged);

    std::vector<OutFrame> frames;
    std::array<std::array<std::byte, kHeaderBytes>, kMaxFrames> headers;
    std::array<std::array<std::byte, sizeof(BulkHeader)>, kMaxFrames> bulk_headers;
    // The first `bytes` have been sent.
    void drop(std::size_t bytes);

    std::vector<transport::ConstBuffer> buffers;
    std::size_t total_bytes = 0;
};

struct Channel::State {
    enum class Phase { open, broken, ended };
    // polling: spins for new frames. sleeping_with_timeout: sleeps until it is woken or an acknowledgement is due.
    // waking: was notified while asleep, but does not run yet.
    enum class PumpState { running, polling, sleeping_with_timeout, sleeping, waking };
    enum class Reading { idle, reading, reporting };

    State(std::unique_ptr<transport::Connection> first, Receiver& to, const Limits& given);

    // channel.cpp
    void fail(UniqueLock& lock, Error cause, bool resumable) GP_REQUIRES(mutex);
    void wake_all_threads() GP_REQUIRES(mutex);
    void learn_connection() GP_REQUIRES(mutex);
    [[nodiscard]] bool on_reader() const { return reading_here == this; }

    // channel_send.cpp
    // One per append, declared before its lock, so that its destructor runs after the unlock: it wakes the next append
    // in the queue and gives the outbox the memory that it needs.
    struct AppendTicket {
        ~AppendTicket();
        State& state;
        bool wake_next = false;
        bool give_chunk = false;
    };
    Status wait_for_room(UniqueLock& lock, std::size_t bytes, AppendTicket& ticket) GP_REQUIRES(mutex);
    void notify_waiters(UniqueLock& lock, ReleasedFrames& released) GP_REQUIRES(mutex);
    Status append_own_frame(OutFrame frame, Urgency urgency);
    enum class PumpWakeup { none, set_flag, notify };
    PumpWakeup prepare_wakeup() GP_REQUIRES(mutex);
    void wake_pump(PumpWakeup what);
    void unlock_and_wake_pump(UniqueLock& lock) GP_RELEASE(mutex);
    [[nodiscard]] bool pump_is_asleep() const GP_REQUIRES(mutex) {
        return pump_state == PumpState::sleeping_with_timeout || pump_state == PumpState::sleeping;
    }
    [[nodiscard]] bool can_send() const GP_REQUIRES(mutex);
    [[nodiscard]] bool sends_itself() const GP_REQUIRES(mutex);
    void begin_batch(UniqueLock& lock) GP_RELEASE(mutex);
    void end_batch(UniqueLock& lock, const Status& status) GP_ACQUIRE(mutex);
    void send_batch(UniqueLock& lock) GP_REQUIRES(mutex);
    void send_here(UniqueLock& lock) GP_RELEASE(mutex);
    transport::Connection::Copied copy_here(UniqueLock& lock) GP_REQUIRES(mutex);
    void note_acknowledged(std::uint64_t sequence) GP_REQUIRES(mutex);
    bool poll_for_work(UniqueLock& lock) GP_REQUIRES(mutex);
    void let_records_gather(UniqueLock& lock) GP_REQUIRES(mutex);
    void run_pump();

    // channel_receive.cpp
    void run_reader();
    Stop read_frames(transport::Connection& from);
    std::optional<Stop> read_after_arrival(transport::Connection& from);
    std::optional<Stop> read_if_memory_allows(FrameReader& reader) GP_REQUIRES(receiving);
    std::optional<Stop> read_one(FrameReader& reader) GP_REQUIRES(receiving);
    [[nodiscard]] bool frame_has_arrived(const transport::Connection* beyond) const GP_REQUIRES(receiving);
    enum class PollResult { received, nothing, incomplete, busy, ended };
    PollResult poll_frames(transport::Connection& from);
    std::optional<Stop> take_bulk(FrameReader& reader, const FrameHeader& header) GP_REQUIRES(receiving);
    std::optional<Stop> take_frame(FrameReader& reader, const FrameHeader& header) GP_REQUIRES(receiving);
    std::optional<Stop> apply_acknowledged(std::uint64_t sequence) GP_REQUIRES(receiving);
    void mark_received(const FrameHeader& header, bool prompt);
    Stop take_goodbye(const FrameHeader& header);

    Receiver& receiver;
    const Limits limits;
    const std::size_t acknowledge_every_bytes;
    const std::size_t bulk_frame_bytes;  // data of one bulk frame

    std::atomic<TrafficObserver*> observer{nullptr};

    Mutex attaching;     // one attach() at a time; taken before `mutex`
    Mutex closing_call;  // one close() at a time; taken before `mutex`
    AdaptiveMutex mutex;

    std::shared_ptr<transport::Connection> connection GP_GUARDED_BY(mutex);
    bool copies GP_GUARDED_BY(mutex) = false;           // spinning pays, and the connection sends by copying
    std::atomic<bool> can_poll{false};                  // spinning pays, and the connection can be polled
    std::uint64_t generation GP_GUARDED_BY(mutex) = 1;  // of `connection`
    Phase phase GP_GUARDED_BY(mutex) = Phase::open;
    std::optional<Error> error GP_GUARDED_BY(mutex);        // why it ended
    std::optional<Error> break_cause GP_GUARDED_BY(mutex);  // why it is broken
    bool started GP_GUARDED_BY(mutex) = false;
    bool closing GP_GUARDED_BY(mutex) = false;   // close() was called
    bool stopping GP_GUARDED_BY(mutex) = false;  // the channel's threads shall return
    bool peer_goodbye GP_GUARDED_BY(mutex) = false;

    Outbox outbox GP_GUARDED_BY(mutex);
    bool sending GP_GUARDED_BY(mutex) = false;
    Batch batch;                            // used by the thread that set `sending`
    TrafficObserver::Moment batch_begin{};  // set only with an observer
    // The batch was partly sent by a thread that must not block; the pump has the sending role now.
    bool batch_left GP_GUARDED_BY(mutex) = false;
    std::uint64_t batch_acknowledges = 0;
    // Notifies a polling pump, which reads it without the lock. An appending thread sets it only while the pump polls,
    // and only once, because writing a word that another processor polls is expensive. It sets the flag after it has
    // released the lock, which the pump takes next.
    alignas(64) std::atomic<bool> work_flag{false};
    alignas(64) PumpState pump_state GP_GUARDED_BY(mutex) = PumpState::running;
    Spin pump_spin;                                      // used by the pump only
    std::uint64_t next_ticket GP_GUARDED_BY(mutex) = 0;  // appends that wait for room proceed in order of their numbers
    std::uint64_t serving_ticket GP_GUARDED_BY(mutex) = 0;

    Mutex receiving;
    transport::Connection* reading_from GP_GUARDED_BY(receiving) = nullptr;
    std::optional<FrameReader> frames GP_GUARDED_BY(receiving);
    // The last acknowledgement applied; saves taking `mutex` for repeated ones.
    std::uint64_t applied GP_GUARDED_BY(receiving) = 0;
    std::optional<Stop> polled_stop GP_GUARDED_BY(receiving);  // found by a polling thread, for the reader to report

    // The last sequence that was received completely. Written with both mutexes held, so either permits reading.
    std::uint64_t received = 0;
    std::uint64_t acknowledged_to_peer GP_GUARDED_BY(mutex) = 0;
    std::size_t received_since_ack_bytes GP_GUARDED_BY(mutex) = 0;
    bool ack_urgent GP_GUARDED_BY(mutex) = false;

    Reading reading GP_GUARDED_BY(mutex) = Reading::idle;
    std::uint64_t reader_generation GP_GUARDED_BY(mutex) = 0;
    static thread_local const State* reading_here;  // the channel whose Receiver this thread may be calling

    std::uint64_t frames_sent GP_GUARDED_BY(mutex) = 0;
    std::uint64_t bytes_sent GP_GUARDED_BY(mutex) = 0;
    std::uint64_t writes GP_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> frames_received{0};  // written by the receiving thread
    std::atomic<std::uint64_t> bytes_received{0};

    Condition pump_wake;
    Condition reader_wake;
    CountingCondition room;      // retained bytes were released
    CountingCondition progress;  // a batch was sent, an acknowledgement arrived, a phase or role changed

    std::thread pump;
    std::thread reader;
};

}  // namespace gpupool::wire
