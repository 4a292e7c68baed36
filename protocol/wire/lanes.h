// Further connections of a session, which carry only bulk data: one TCP connection carries about 4 GB/s, eight carry as
// much as the machine can. Any transport::Connection can be a lane.
//
// Sending: pieces go into one queue, from which every idle lane takes the next, so that a slow lane takes fewer. A
// piece is one frame. It is sent from its own memory and received into its destination; its headers have a CRC, its
// data has none (frame.h). The sender compresses it first if that is faster on this network (piece_packer.h). Receiving
// never waits for sending, nor one lane for another, so that data in both directions cannot deadlock.
//
// Order: pieces are numbered as they are queued, and land in any order. A record that must not be acted on before them
// carries the number of the last piece on the session's own connection (sent_up_to() of the sender, wait_landed() of
// the receiver).
//
// Lanes are not acknowledged: a lane that breaks ends all of them, and with them the session. To resume a session, the
// sender would have to keep pieces until the other side has reported its landed number (Landed), at which a new set of
// lanes begins; the number in each frame is meant for that.
//
// Ownership: the lanes own their connections; the LaneReceiver outlives them. Memory passed to send() stays valid until
// its `done` is called: exactly once, when a connection has accepted the piece or the lanes have ended.
// Threads: all methods from any thread, except that a LaneReceiver or a `done` must not call wait_landed(), close() or
// the destructor. Each lane has a thread that sends and one that receives; they call the LaneReceiver, several at a
// time.
// Errors: the first cause is kept (error()) and returned by every later send().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/result.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/compression_mode.h"
#include "protocol/wire/traffic_observer.h"

namespace gpupool::wire {

class LaneReceiver {
  public:
    virtual ~LaneReceiver() = default;

    // Returns where to put a piece; its data is written there without a further copy. The memory stays valid until
    // on_piece() or on_piece_lost(), exactly one of which follows. An empty span refuses the piece and ends the lanes.
    virtual std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The piece has landed.
    virtual void on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The lanes have ended before the piece was complete.
    virtual void on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // A lane broke, or its peer violated the protocol: all lanes have ended. Called at most once, and not after end()
    // or close().
    virtual void on_lanes_ended(const Error& cause) = 0;
};

class Lanes {
  public:
    static constexpr std::size_t kMaxLanes = 64;
    // Smaller data is as fast on the session's own connection, where no thread has to be woken; larger pieces would
    // keep the lanes from sharing the work. (Data sent ahead goes over lanes regardless of its size.)
    static constexpr std::size_t kLeastPieceBytes = 128u << 10;
    static constexpr std::size_t kMaxPieceBytes = 1u << 20;

    struct Limits {
        std::size_t lanes = 8;                 // at most kMaxLanes
        std::size_t queued_bytes = 64u << 20;  // queued or being sent; at this limit send() blocks
        CompressionMode compression = CompressionMode::when_it_pays;  // of sent pieces
    };

    Lanes(LaneReceiver& receiver, const Limits& limits);
    ~Lanes();
    Lanes(const Lanes&) = delete;
    Lanes& operator=(const Lanes&) = delete;

    // Takes `connection`, whose handshake is complete, as lane `index`, and starts its threads. Refuses an index that
    // is in use or beyond the limit, without effect on the other lanes. admits() checks the same in advance.
    [[nodiscard]] Status admits(std::size_t index) const;
    Status add(std::size_t index, std::unique_ptr<transport::Connection> connection);

    // Reports traffic from here on to `observer`.
    void observe(TrafficObserver* observer) noexcept;

    // The number of lanes.
    [[nodiscard]] std::size_t count() const noexcept;

    // Whether data of that size is to be sent over lanes.
    [[nodiscard]] bool take(std::size_t bytes) const noexcept {
        return bytes >= kLeastPieceBytes && bytes <= kMaxPieceBytes && count() != 0;
    }

    // Queues one piece of 1 to kMaxPieceBytes. Blocks while the queue is full. `done` is called even if this fails.
    Status send(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                std::function<void()> done);

    // The number of the last queued piece; 0 if there is none.
    [[nodiscard]] std::uint64_t sent_up_to() const noexcept;

    // Blocks until all of the peer's pieces up to `number` have landed. False if the lanes ended before that.
    bool wait_landed(std::uint64_t number);

    // Ends all lanes without waiting for their threads.
    void end(const Error& cause);

    // As end(), but returns when all threads have ended.
    void close();

    [[nodiscard]] Status error() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool::wire
