// One session's two-way flow of frames over a connection.
//
// Sending: any thread appends; the order of appends is the order on the wire (the session's total order). A pump thread
// drains what was appended as fast as the connection takes it: whatever accumulated while the last write was under way
// becomes the next one. Where processors are to spare it first looks for some microseconds whether more comes. A thread
// sends by itself, with all that was appended,
//   - when it is going to wait for an answer (`Urgency::now`);
//   - where processors are to spare (common/spin.h), when the pump sleeps or is only just being woken, which takes
//     longer than sending;
//   - but when sending is no more than a copy (Connection::sends_by_copying()), as long as the peer keeps up, whatever
//     the pump does: it has acknowledged all but 512 frames. One small frame alone it then copies while it holds the
//     channel's lock (Connection::copy_whole()).
// What the connection does not take at once is the pump's. Every retained frame stays in memory until the peer has
// acknowledged it; when `Limits::retained_bytes` are outstanding, or `retained_records`, `append` waits: back-pressure,
// never growth.
//
// Receiving: a thread of its own, the reader, checks sequence and CRC (bulk data has none: frame.h), and calls the
// `Receiver`. It never waits for the sending side, nor the sending side for it, so bulk data in both directions cannot
// deadlock. Where the transport lets a thread see what has arrived, and processors are to spare, who waits for it may
// take frames itself (`Look`), which saves handing them over: receiving is a role, which one thread has at a time.
//
// Resumption: when the connection breaks and `Limits::resume` is set, the channel stays usable: appends go on being
// retained, and `attach()` with a new connection and the peer's last received sequence sends again what the peer lacks.
// Without it the first failure ends the channel. No session sets it yet: there is no way to come back to a worker.
//
// Ownership: the channel owns its connection; the `Receiver` outlives the channel. Memory handed to `append_bulk` by
//   reference stays valid until its `done` was called (exactly once, also when the channel ends).
//   Without `Limits::resume` that is when the connection has taken it, otherwise when the peer has acknowledged it.
// Threads: all methods from any thread, except that `close()`, `flush()` and the destructor must not be called from a
//   Receiver, nor `attach()` but from its on_closed. A Look is one thread's, and ends before the channel does. An
//   append from a Receiver never waits, since the acknowledgements that would make room are read by that very thread:
//   up to twice the limits it is taken, beyond that refused with `limit_exceeded`. A `done` runs on one of the
//   channel's threads, or inside the call that ended the transfer; it must not wait and must not call the channel.
// Errors: the first cause is kept: `error()`; every later append returns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>

#include "common/result.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/traffic_observer.h"

namespace gpupool::wire {

class Receiver {
  public:
    virtual ~Receiver() = default;

    // Where `bytes` of transfer `transfer` at `offset` go. Called before the payload is read, which then lands there
    // without a further copy. An empty span refuses the frame and ends the channel: a transfer the receiver never
    // announced, or bytes outside of it. After a break the same piece may be asked for again without an on_bulk
    // between.
    virtual std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The data of an earlier bulk_destination has landed.
    virtual void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The connection broke before that: nothing is written there any more.
    virtual void on_bulk_lost(std::uint64_t /*transfer*/, std::uint64_t /*offset*/, std::size_t /*bytes*/) {}

    // Any other frame. The payload is the receiver's from here on. May wait (bounded queue): then the peer is slowed
    // down. While it waits no acknowledgements are read, so it must not wait for a thread that waits in an append:
    // on_append_waits() says when one does.
    virtual void on_frame(FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) = 0;

    // A thread begins, or has ended, to wait in an append until the peer acknowledges. Called by that thread, without
    // the channel's lock; other appends wait behind it, so it must neither wait nor append.
    virtual void on_append_waits(bool /*waits*/) {}

    // The connection broke (resumable) or the channel ended: no further calls unless attach() follows. Once for every
    // connection of a started channel; a break that is never followed by attach() is not reported again at the end.
    virtual void on_closed(const Error& cause) = 0;
};

struct Limits {
    std::size_t retained_bytes = 64u << 20;  // un-acknowledged and unsent, at most
    // The same of records, where each costs the peer far more than its bytes.
    std::size_t retained_records = std::numeric_limits<std::size_t>::max() / 2;  // no limit
    std::size_t frame_bytes = 256u << 10;  // a commands or replies frame is closed at about this size
    bool resume = false;
};

// When an appended record leaves.
enum class Urgency {
    soon,           // the pump takes it, or this thread where that is better (above)
    now,            // this thread sends it, as far as that goes without waiting
    later,          // with whatever is sent next: nudge() follows
    ahead_of_bulk,  // the same, before bulk data that is not sent yet: for what keeps the peer from asking for too much
                    // of it
};

struct Counters {
    std::uint64_t frames_sent = 0, frames_received = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    std::uint64_t writes = 0;  // system calls to send; frames_sent / writes shows the batching
};

class Channel {
  public:
    // Sequences begin at 1: handshake frames are not retained (handshake_io.h), so a worker that takes over a
    // connection whose handshake the daemon read begins like everybody else.
    Channel(std::unique_ptr<transport::Connection> connection, Receiver& receiver, Limits limits = {});
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    void start();

    // Appends one record of `bytes` to the open frame of `type` (commands or replies) and calls `fill` with its place,
    // under the lock that makes the order: `fill` only copies. Records are 8-byte aligned and never split; zeros fill
    // the gap to the next one.
    template <class Fill>
    Status append(FrameType type, std::size_t bytes, Fill&& fill, Urgency urgency = Urgency::soon) {
        return append_erased(
            type, bytes, urgency,
            [](void* context, std::byte* place) { (*static_cast<std::remove_reference_t<Fill>*>(context))(place); },
            const_cast<void*>(static_cast<const void*>(std::addressof(fill))));
    }

    // Sends what was appended, as far as that goes without waiting. Any thread, a Receiver's as well.
    void nudge();

    // Appends a frame of its own: commands, replies or control.
    Status append_frame(FrameType type, std::span<const std::byte> payload);

    // Appends bulk data, in as many frames as it takes. With `done`, the data is sent from where it lies and `done`
    // says when it is no longer needed; without, it is copied before this returns. It leaves soon, or later.
    Status append_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                       std::function<void()> done = {}, Urgency urgency = Urgency::soon);

    // Waits until everything appended so far was handed to the connection (not: received).
    Status flush();

    // Orderly end: sends what is pending and a goodbye, and waits until the peer has acknowledged them (for at most
    // `timeout`), then shuts down.
    void close(std::chrono::milliseconds timeout = std::chrono::milliseconds(500));

    // Looks for frames while it lives, which should be for a moment, or until the thread that has it sleeps: the
    // reading thread gives way meanwhile. Where the connection cannot be looked at, this changes nothing.
    class PollingReceiver {
      public:
        explicit PollingReceiver(Channel& channel);
        ~PollingReceiver() { end(); }
        PollingReceiver(const PollingReceiver&) = delete;
        PollingReceiver& operator=(const PollingReceiver&) = delete;

        // Gives frames that are here as a whole to the Receiver. One that stays incomplete ends the look.
        void poll();

      private:
        void end();

        Channel& channel_;
        std::shared_ptr<transport::Connection> connection_;  // null: it has ended
        unsigned incomplete_ = 0;                            // times in a row
    };

    // Continues after a break on a new connection; `peer_received` is the last sequence that the peer saw. A connection
    // that still seems to work is given up for the new one. A claim about `peer_received` that cannot be true is
    // refused and leaves the channel as it was.
    Status attach(std::unique_ptr<transport::Connection> connection, std::uint64_t peer_received);

    // Tells `observer` of what passes from here on, as line 0.
    void observe(TrafficObserver* observer) noexcept;

    [[nodiscard]] std::uint64_t last_received() const noexcept;
    [[nodiscard]] Counters counters() const noexcept;
    [[nodiscard]] Status error() const;

  private:
    using Fill = void (*)(void* context, std::byte* place);
    Status append_erased(FrameType type, std::size_t bytes, Urgency urgency, Fill fill, void* context);

    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool::wire
