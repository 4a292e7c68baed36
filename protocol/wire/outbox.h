// The frames that a channel has to send, or may have to send again, in order of their sequence.
//
//   released | sent, not acknowledged | being sent | appended, not sent | the open frame
//            ^ acknowledged()         ^ sent()     ^ attempted()                       ^ last_sequence()
//
// A frame's sequence is final only once it was attempted: an urgent record is inserted before bulk data that is not
// sent yet.
//
// Records and copied data are stored in chunks of memory that consecutive frames share, so that appending a record only
// advances a pointer. Frames that are removed are moved into a ReleasedFrames, which the caller clears without holding
// its lock: destroying the last frame of a transfer runs the transfer's `done`.
//
// Ownership: the outbox owns frames and chunks; data by reference belongs to the appending caller. Threads: none of its
// own; the channel's mutex guards every call. The result of collect() stays valid, without the mutex, until
// batch_done().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/fifo.h"
#include "protocol/wire/frame.h"

namespace gpupool::wire {

struct Chunk {
    explicit Chunk(std::size_t bytes) : data(std::make_unique_for_overwrite<std::byte[]>(bytes)), capacity(bytes) {}
    const std::unique_ptr<std::byte[]> data;
    const std::size_t capacity;
    std::size_t used = 0;
};

// Data that is sent by reference. Its frames share this; the destructor of the last one runs `done`.
class Transfer {
  public:
    explicit Transfer(std::function<void()> done) : done_(std::move(done)) {}
    ~Transfer() { done_(); }
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

  private:
    std::function<void()> done_;
};

struct OutFrame {
    std::uint64_t sequence = 0;  // set when it is collected
    FrameType type = FrameType::control;
    BulkHeader bulk;                  // of a bulk frame
    const std::byte* data = nullptr;  // in `chunk`, or by reference
    std::size_t bytes = 0;
    std::size_t records = 0;             // number of records, in a frame of records
    std::shared_ptr<Chunk> chunk;        // owner of copied data
    std::shared_ptr<Transfer> transfer;  // for data by reference

    [[nodiscard]] std::size_t payload_bytes() const noexcept {
        return bytes + (type == FrameType::bulk ? sizeof(BulkHeader) : 0);
    }
};

using ReleasedFrames = std::vector<OutFrame>;

class Outbox {
  public:
    explicit Outbox(std::size_t frame_bytes) : frame_bytes_(frame_bytes) {}

    // Whether `bytes` more may be retained within both limits. A record larger than the limit is accepted alone.
    [[nodiscard]] bool fits(std::size_t bytes, std::size_t limit_bytes, std::size_t limit_records) const noexcept;

    // True if the outbox will soon need memory, which a thread that holds no lock should allocate.
    [[nodiscard]] bool wants_chunk() const noexcept {
        return current_ && !spare_ && current_->used > current_->capacity / 2;
    }
    [[nodiscard]] std::size_t chunk_bytes() const noexcept { return frame_bytes_; }
    // Returns the chunk if it is not needed after all.
    [[nodiscard]] std::shared_ptr<Chunk> give_chunk(std::shared_ptr<Chunk> chunk) noexcept {
        return spare_ ? std::move(chunk) : std::exchange(spare_, std::move(chunk));
    }

    // Memory for one record of `bytes`, a multiple of 8, at the end of the open frame or in a new one.
    std::byte* add_record(FrameType type, std::size_t bytes);

    // The same for a record that is inserted before bulk data that is not sent yet, but behind earlier urgent records.
    std::byte* add_urgent_record(FrameType type, std::size_t bytes);

    // Adds a complete frame. Returns its sequence, which increases if an urgent record is inserted before it.
    std::uint64_t add_frame(OutFrame frame);

    [[nodiscard]] bool has_unsent() const noexcept { return sent_ < last_sequence(); }
    [[nodiscard]] std::uint64_t last_sequence() const noexcept { return first_ + frames_.size() - 1; }
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    [[nodiscard]] std::uint64_t attempted() const noexcept { return attempted_; }
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }
    // How many urgent records were inserted before other frames so far. A frame that was appended before such an
    // insertion, and was not attempted by then, has moved back by one.
    [[nodiscard]] std::uint64_t overtakes() const noexcept { return overtakes_; }
    // Number of frames, sent and unsent.
    [[nodiscard]] std::size_t retained() const noexcept { return frames_.size(); }

    // The only unsent frame, if there is exactly one and it consists of records: sending it needs no batch.
    [[nodiscard]] const OutFrame* only_unsent() const noexcept {
        const bool one = !in_flight_ && open_ && sent_ + 1 == last_sequence();
        return one ? &frames_[frames_.size() - 1] : nullptr;
    }
    // The frame of only_unsent() was sent.
    void only_unsent_sent() noexcept {
        attempted_ = sent_ = last_sequence();
        open_ = false;
    }

    // The next frames to send, as copies without references (sequence, type, bulk, data, bytes): at least one if there
    // is one, then up to the limits. Closes the open frame if it is among them.
    void collect(std::vector<OutFrame>& batch, std::size_t max_frames, std::size_t max_bytes);

    // The collected batch is no longer being sent. If it was `delivered`, it counts as sent, and with `drop_transfers`
    // data by reference is released.
    void batch_done(bool delivered, bool drop_transfers, ReleasedFrames& released);

    // The peer has received all frames up to and including `sequence`: releases them. False if that frame was never
    // sent.
    [[nodiscard]] bool acknowledge(std::uint64_t sequence, ReleasedFrames& released);

    // Continues sending after the last acknowledged frame. Only when no batch is being sent.
    void rewind() noexcept { sent_ = acknowledged_; }

    // Removes everything. Only when no batch is being sent.
    void clear(ReleasedFrames& released);

  private:
    static constexpr std::size_t kFrameOverheadBytes =
        128;  // header and bookkeeping, so that tiny frames count as well

    void insert(std::size_t at, OutFrame frame);
    void release(ReleasedFrames& released);
    void release_frame(OutFrame&& frame, ReleasedFrames& released);
    std::shared_ptr<Chunk> take_chunk(std::size_t bytes);

    const std::size_t frame_bytes_;
    Fifo<OutFrame> frames_;
    std::uint64_t first_ = 1;  // sequence of frames_.front()
    std::uint64_t sent_ = 0;
    std::uint64_t attempted_ = 0;
    std::uint64_t acknowledged_ = 0;
    std::uint64_t last_urgent_ = 0;  // the sequence of the last inserted urgent record
    std::uint64_t overtakes_ = 0;
    bool open_ = false;       // frames_.back() accepts further records
    bool in_flight_ = false;  // frames in (sent_, in_flight_end_] are being sent
    std::uint64_t in_flight_end_ = 0;
    std::size_t retained_bytes_ = 0;
    std::size_t retained_records_ = 0;
    std::shared_ptr<Chunk> current_;  // where records are written
    std::shared_ptr<Chunk> spare_;    // for reuse: the last one that became free
};

}  // namespace gpupool::wire
