// One session's two-way stream of frames over a connection.
//
// Sending: any thread appends; the order of appends is the order on the wire (the session's total order). A thread of
// the channel, the pump, drains the appended frames as fast as the connection accepts them: everything that accumulated
// during one write goes into the next. If the process has enough processors (common/spin.h), the pump polls for more
// for some microseconds before it sleeps. An appending thread itself sends, together with everything appended before,
//   - if it will then wait for a reply (`Urgency::now`);
//   - if the process has enough processors and the pump sleeps or is just waking up: waking takes longer than sending;
//   - if sending is only a copy (Connection::sends_by_copying()) and the peer keeps up, meaning that at most 512 frames
//     are not acknowledged, whatever the pump does. It copies a single small frame while it holds the channel's lock
//     (Connection::copy_whole()).
// The pump sends what the connection does not accept at once. Every frame stays in memory until the peer has
// acknowledged it; at `Limits::retained_bytes` or `retained_records`, `append` blocks, so that memory stays bounded.
//
// Receiving: a thread of the channel, the reader, checks sequence and CRC (bulk data has none: frame.h), and calls the
// `Receiver`. It never waits for the sending side, nor the sending side for it, so bulk data in both directions cannot
// deadlock. If the transport can be polled and the process has enough processors, a thread that waits for a frame may
// receive it itself (`PollingReceiver`), which saves a hand-over from the reader: receiving is a role that one thread
// has at a time.
//
// Resumption: if the connection breaks and `Limits::resume` is set, the channel stays usable: it goes on retaining
// appends, and `attach()` with a new connection and the peer's last received sequence sends again what the peer lacks.
// Without it the first failure ends the channel. No session sets it yet, because a client cannot reconnect to its
// worker.
//
// Ownership: the channel owns its connection; the `Receiver` outlives the channel. Memory passed to `append_bulk` by
// reference stays valid until its `done` is called (exactly once, also when the channel ends): with `Limits::resume`
// when the peer has acknowledged the data, otherwise when the connection has accepted it.
// Threads: all methods from any thread, except that a Receiver must not call `close()`, `flush()` or the destructor,
// and may call `attach()` only from on_closed. A PollingReceiver belongs to one thread, and ends before the channel. An
// append from a Receiver never blocks, because the same thread reads the acknowledgements that would make room: it is
// accepted up to twice the limits, and beyond that refused with `limit_exceeded`. A `done` runs on one of the channel's
// threads, or inside the call that ended the transfer; it must not block and must not call the channel.
// Errors: the channel keeps the first cause: `error()` returns it, and so does every later append.
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

    // Returns where to put `bytes` of the transfer at `offset`. Called before the payload is read, which is then
    // written there without a further copy. An empty span refuses the frame and ends the channel: the transfer is
    // unknown, or the range is outside of it. After a break the same piece may be asked for again without an on_bulk in
    // between.
    virtual std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The data for an earlier bulk_destination has been written.
    virtual void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The connection broke before that: nothing more is written there.
    virtual void on_bulk_lost(std::uint64_t /*transfer*/, std::uint64_t /*offset*/, std::size_t /*bytes*/) {}

    // Any other frame. The receiver owns the payload from here on. May block (bounded queue), which slows the peer
    // down. While it blocks no acknowledgements are read, so it must not wait for a thread that is blocked in an
    // append: on_append_waits() reports those.
    virtual void on_frame(FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) = 0;

    // A thread begins to wait, or has stopped waiting, in an append for the peer's acknowledgements. Called by that
    // thread, without the channel's lock; other appends wait behind it, so this must neither block nor append.
    virtual void on_append_waits(bool /*waits*/) {}

    // The connection broke (resumable) or the channel ended: no further calls unless attach() follows. Called once for
    // each connection of a started channel; a break that no attach() follows is not reported again at the end.
    virtual void on_closed(const Error& cause) = 0;
};

struct Limits {
    std::size_t retained_bytes = 64u << 20;  // limit of unsent and unacknowledged data
    // Limit of unsent and unacknowledged records, for use if a record costs the peer far more than its bytes.
    std::size_t retained_records = std::numeric_limits<std::size_t>::max() / 2;  // no limit
    std::size_t frame_bytes = 256u << 10;  // about the size at which a commands or replies frame is closed
    bool resume = false;
};

// When an appended record is sent.
enum class Urgency {
    soon,           // by the pump, or by this thread if that is better (see above)
    now,            // by this thread, as far as possible without blocking
    later,          // together with the next data sent; the caller calls try_flush() later
    ahead_of_bulk,  // as later, but before bulk data that is not sent yet: for records that keep the peer from
                    // requesting too much bulk data
};

struct Counters {
    std::uint64_t frames_sent = 0, frames_received = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    std::uint64_t writes = 0;  // send calls; frames_sent / writes shows the batching
};

class Channel {
  public:
    // Sequences begin at 1. Handshake frames are not retained (handshake_io.h), so a worker that takes over a
    // connection whose handshake the daemon read starts at the same numbers.
    Channel(std::unique_ptr<transport::Connection> connection, Receiver& receiver, Limits limits = {});
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    void start();

    // Appends one record of `bytes` to the open frame of `type` (commands or replies) and calls `fill` with its
    // address, with the lock held that defines the order: `fill` must only copy. Records are aligned to 8 bytes and
    // never split; zeros fill the gap to the next one.
    template <class Fill>
    Status append(FrameType type, std::size_t bytes, Fill&& fill, Urgency urgency = Urgency::soon) {
        return append_erased(
            type, bytes, urgency,
            [](void* context, std::byte* place) { (*static_cast<std::remove_reference_t<Fill>*>(context))(place); },
            const_cast<void*>(static_cast<const void*>(std::addressof(fill))));
    }

    // Sends everything appended so far, as far as possible without blocking. From any thread, even a Receiver's.
    void try_flush();

    // Appends bulk data, in as many frames as needed. With `done`, the data is sent from `data`'s memory, and `done` is
    // called when that is no longer needed; without, it is copied before this returns. `urgency` must be soon or later.
    Status append_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                       std::function<void()> done = {}, Urgency urgency = Urgency::soon);

    // Blocks until everything appended so far has been passed to the connection (not: received).
    Status flush();

    // Orderly end: sends pending frames and a goodbye, waits until the peer has acknowledged them (for at most
    // `timeout`), then shuts down.
    void close(std::chrono::milliseconds timeout = std::chrono::milliseconds(500));

    // Lets the owning thread poll for frames and receive them itself; the reader yields meanwhile. Should exist only
    // for a short time, or until its thread sleeps. Without effect if the connection cannot be polled.
    class PollingReceiver {
      public:
        explicit PollingReceiver(Channel& channel);
        ~PollingReceiver() { end(); }
        PollingReceiver(const PollingReceiver&) = delete;
        PollingReceiver& operator=(const PollingReceiver&) = delete;

        // Passes completely arrived frames to the Receiver. Ends polling if a frame stays incomplete.
        void poll();

      private:
        void end();

        Channel& channel_;
        std::shared_ptr<transport::Connection> connection_;  // null: polling has ended
        unsigned incomplete_ = 0;                            // polls in a row that found an incomplete frame
    };

    // Continues after a break on a new connection; `peer_received` is the last sequence that the peer received. If the
    // old connection still seems to work, it is given up. An impossible `peer_received` is refused and leaves the
    // channel unchanged.
    Status attach(std::unique_ptr<transport::Connection> connection, std::uint64_t peer_received);

    // Reports traffic from here on to `observer`, as line 0.
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
