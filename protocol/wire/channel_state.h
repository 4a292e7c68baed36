// What a Channel is made of; only channel*.cpp include this.
//
//   channel.cpp          the public face: life, attach, close
//   channel_send.cpp     appending, back-pressure, the pump
//   channel_receive.cpp  the reader, and who looks
//
// Threads: `mutex` guards every member that is neither const nor said to be otherwise. It is never held across a call
//   of the connection (but copy_whole(), which is a copy), of the Receiver or of a `done`. Two roles pass between
//   threads: whoever set `sending` may use the batch and send on `connection` (with `batch_left` it has passed that on
//   to the pump); whoever holds `receiving`, which is taken before `mutex`, may receive and call the Receiver: the
//   reader, or who looks.
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

// Why reading stopped. A violation will be repeated by a peer that means it, so a new connection would not help.
struct Stop {
    Error cause;
    bool resumable = false;
};

// One gather write: headers are made here, payloads stay where they are.
struct Batch {
    static constexpr std::size_t kMaxFrames = 64;
    static constexpr std::size_t kMaxBytes = 1u << 20;

    // Makes `buffers` from `frames`, or from a bare acknowledgement where there are none.
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
    // `wakes`: was told to, and will some time later.
    enum class Pump { works, looks, dozes, sleeps, wakes };
    enum class Reading { idle, reading, reporting };

    State(std::unique_ptr<transport::Connection> first, Receiver& to, const Limits& given);

    // channel.cpp
    void fail(UniqueLock& lock, Error cause, bool resumable) GP_REQUIRES(mutex);
    void wake_everybody() GP_REQUIRES(mutex);
    void learn_connection() GP_REQUIRES(mutex);
    [[nodiscard]] bool on_reader() const { return reading_here == this; }

    // channel_send.cpp
    // An append's, declared before its lock: when that is released, whoever waits behind it is woken, and the outbox
    // given the memory that it wants.
    struct AppendTicket {
        ~AppendTicket();
        State& state;
        bool wake_next = false;
        bool give_chunk = false;
    };
    Status wait_for_room(UniqueLock& lock, std::size_t bytes, AppendTicket& ticket) GP_REQUIRES(mutex);
    void wake_who_waits(UniqueLock& lock, Graveyard& graveyard) GP_REQUIRES(mutex);
    Status append_own_frame(OutFrame frame, Urgency urgency = Urgency::soon);
    enum class Rouse { nothing, tell, wake };
    Rouse rouse() GP_REQUIRES(mutex);
    void deliver(Rouse what);
    void unlock_and_rouse(UniqueLock& lock) GP_RELEASE(mutex);
    [[nodiscard]] bool pump_sleeps() const GP_REQUIRES(mutex) { return doing == Pump::dozes || doing == Pump::sleeps; }
    [[nodiscard]] bool can_send() const GP_REQUIRES(mutex);
    [[nodiscard]] bool sends_itself() const GP_REQUIRES(mutex);
    void begin_batch(UniqueLock& lock) GP_RELEASE(mutex);
    void end_batch(UniqueLock& lock, const Status& status) GP_ACQUIRE(mutex);
    void send_batch(UniqueLock& lock) GP_REQUIRES(mutex);
    void send_here(UniqueLock& lock) GP_RELEASE(mutex);
    bool copy_here(UniqueLock& lock) GP_REQUIRES(mutex);
    void note_acknowledged(std::uint64_t sequence) GP_REQUIRES(mutex);
    bool poll_for_work(UniqueLock& lock) GP_REQUIRES(mutex);
    void let_gather(UniqueLock& lock) GP_REQUIRES(mutex);
    void run_pump();

    // channel_receive.cpp
    void run_reader();
    Stop read_frames(transport::Connection& from);
    std::optional<Stop> read_when_it_comes(transport::Connection& from);
    std::optional<Stop> read_if_memory_allows(FrameReader& reader) GP_REQUIRES(receiving);
    std::optional<Stop> read_one(FrameReader& reader) GP_REQUIRES(receiving);
    [[nodiscard]] bool frame_is_here(const transport::Connection* beyond) const GP_REQUIRES(receiving);
    enum class PollResult { received, nothing, incomplete, busy, ended };
    PollResult poll_frames(transport::Connection& from);
    std::optional<Stop> take_bulk(FrameReader& reader, const FrameHeader& header);
    std::optional<Stop> take_frame(FrameReader& reader, const FrameHeader& header);
    std::optional<Stop> apply_acknowledged(std::uint64_t sequence);
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
    bool copies GP_GUARDED_BY(mutex) = false;           // it sends by copying, and processors are to spare
    std::atomic<bool> can_poll{false};                  // it lets who waits see what has arrived; the same
    std::uint64_t generation GP_GUARDED_BY(mutex) = 1;  // of `connection`
    Phase phase GP_GUARDED_BY(mutex) = Phase::open;
    std::optional<Error> error GP_GUARDED_BY(mutex);        // why it ended
    std::optional<Error> break_cause GP_GUARDED_BY(mutex);  // why it is broken
    bool started GP_GUARDED_BY(mutex) = false;
    bool closing GP_GUARDED_BY(mutex) = false;   // close() was called
    bool stopping GP_GUARDED_BY(mutex) = false;  // the threads are to return
    bool peer_goodbye GP_GUARDED_BY(mutex) = false;

    Outbox outbox GP_GUARDED_BY(mutex);
    bool sending GP_GUARDED_BY(mutex) = false;
    Batch batch;                                   // whoever set `sending`
    TrafficObserver::Moment batch_begin{};         // with an observer
    bool batch_left GP_GUARDED_BY(mutex) = false;  // begun by a thread that may not wait; `sending` is the pump's now
    std::uint64_t batch_acknowledges = 0;
    // The pump looks for it without the lock. Whoever appends writes it only while the pump looks, and once: a word
    // that one processor reads all the time is dear for another to write. After the lock was released, which the pump
    // takes next.
    alignas(64) std::atomic<bool> news{false};
    alignas(64) Pump doing GP_GUARDED_BY(mutex) = Pump::works;
    Spin pump_spin;                                      // the pump's
    std::uint64_t next_ticket GP_GUARDED_BY(mutex) = 0;  // appends that wait for room go on in the order they came
    std::uint64_t serving_ticket GP_GUARDED_BY(mutex) = 0;

    Mutex receiving;  // guards what follows
    transport::Connection* reading_from GP_GUARDED_BY(receiving) = nullptr;
    std::optional<FrameReader> frames GP_GUARDED_BY(receiving);
    std::uint64_t applied = 0;  // the last acknowledgement taken from it, which spares the lock for repeated ones
    std::optional<Stop> found_stop GP_GUARDED_BY(receiving);  // by who looked, for the reader to report

    std::uint64_t received = 0;  // the last sequence that arrived whole
    std::uint64_t acknowledged_to_peer GP_GUARDED_BY(mutex) = 0;
    std::size_t received_since_ack_bytes GP_GUARDED_BY(mutex) = 0;
    bool ack_urgent GP_GUARDED_BY(mutex) = false;

    Reading reading GP_GUARDED_BY(mutex) = Reading::idle;
    std::uint64_t reader_generation GP_GUARDED_BY(mutex) = 0;
    static thread_local const State* reading_here;  // whose Receiver the thread may be in

    std::uint64_t frames_sent GP_GUARDED_BY(mutex) = 0;
    std::uint64_t bytes_sent GP_GUARDED_BY(mutex) = 0;
    std::uint64_t writes GP_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> frames_received{0};  // the reader's
    std::atomic<std::uint64_t> bytes_received{0};

    Condition pump_wake;
    Condition reader_wake;
    CountingCondition room;      // retained bytes went
    CountingCondition progress;  // a batch was sent, an acknowledgement came, a phase or role changed

    std::thread pump;
    std::thread reader;
};

}  // namespace gpupool::wire
