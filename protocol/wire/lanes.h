// Further connections of a session, which carry bulk data and nothing else: one TCP connection moves some 4 GB/s, eight
// move what the machine can. Any transport::Connection can be a lane.
//
// Sending: pieces go into one queue, from which every lane that is idle takes the next: a slow lane takes fewer. A
// piece is one frame, is sent from where it lies, and lands where the receiver wants it; its headers have a CRC, its
// data has none (frame.h). Where that is quicker over this line, its sender makes it smaller first (piece_packer.h).
// Receiving never waits for sending, nor one lane for another, so that data both ways cannot deadlock.
//
// Order: pieces are numbered as they are queued, and land in any order. What must not be acted on before them says so
// on the session's own connection, as "all up to piece number n" (sent_up_to() here, wait_landed() there).
//
// Lanes are not acknowledged: a lane that breaks ends them all, and with them the session. To resume a session, pieces
// would stay with their sender until the other side has told its landed number (Landed), which a new set of lanes
// begins with; the number in each frame is there for that.
//
// Ownership: the lanes own their connections; the LaneReceiver outlives them. Memory handed to send() stays valid until
//   its `done` was called: exactly once, when a connection has taken the piece or the lanes have ended.
// Threads: all methods from any thread, but wait_landed(), close() and the destructor not from a LaneReceiver or a
//   `done`. Each lane has a thread that sends and one that receives; they call the LaneReceiver, several at a time.
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

    // Where a piece goes; its data lands there without a further copy. What is returned stays valid until on_piece() or
    // on_piece_lost(), of which exactly one follows. An empty span refuses the piece and ends the lanes.
    virtual std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The piece has landed.
    virtual void on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // The lanes have ended in the middle of it.
    virtual void on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) = 0;

    // A lane broke, or its peer broke the rules: all have ended. Once at most, and not after end() or close().
    virtual void on_lanes_ended(const Error& cause) = 0;
};

class Lanes {
  public:
    static constexpr std::size_t kMaxLanes = 64;
    // Smaller data is as fast on the session's own connection, where nobody has to be woken; larger would keep a lane
    // from sharing the work. (What is sent ahead goes over lanes whatever its size.)
    static constexpr std::size_t kLeastPieceBytes = 128u << 10;
    static constexpr std::size_t kMaxPieceBytes = 1u << 20;

    struct Limits {
        std::size_t lanes = 8;                                        // at most kMaxLanes
        std::size_t queued_bytes = 64u << 20;                         // that wait or are being sent; then send() waits
        CompressionMode compression = CompressionMode::when_it_pays;  // of what is sent
    };

    Lanes(LaneReceiver& receiver, const Limits& limits);
    ~Lanes();
    Lanes(const Lanes&) = delete;
    Lanes& operator=(const Lanes&) = delete;

    // Takes `connection`, whose handshake is over, as lane `index`, and begins with it. Refused, and not noticed by the
    // others: an index that is taken or beyond the limit. admits() says beforehand.
    [[nodiscard]] Status admits(std::size_t index) const;
    Status add(std::size_t index, std::unique_ptr<transport::Connection> connection);

    // Tells `observer` of what passes from here on.
    void observe(TrafficObserver* observer) noexcept;

    // How many there are.
    [[nodiscard]] std::size_t count() const noexcept;

    // Whether data of that size goes this way.
    [[nodiscard]] bool take(std::size_t bytes) const noexcept {
        return bytes >= kLeastPieceBytes && bytes <= kMaxPieceBytes && count() != 0;
    }

    // Queues one piece, of 1 to kMaxPieceBytes. Waits while the queue is full. `done` is called even where this fails.
    Status send(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                std::function<void()> done);

    // The number of the piece that was queued last; 0: none was.
    [[nodiscard]] std::uint64_t sent_up_to() const noexcept;

    // Waits until all of the peer's pieces up to `number` have landed. False when the lanes have ended first.
    bool wait_landed(std::uint64_t number);

    // Ends all lanes without waiting for their threads.
    void end(const Error& cause);

    // The same, and returns when no thread is left.
    void close();

    [[nodiscard]] Status error() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gpupool::wire
