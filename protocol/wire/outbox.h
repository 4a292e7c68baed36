// What a channel has to send and may have to send again: frames in the order of their sequence.
//
//   released | sent, not acknowledged | being sent | appended, not sent | the open frame
//            ^ acknowledged()         ^ sent()     ^ attempted()                       ^ last_sequence()
//
// Only what was attempted has its number for good: an urgent record goes in front of the data that is not sent yet.
//
// Records and copied data lie in chunks of memory that consecutive frames share, so that appending a record is a bump
// of a pointer. Frames that leave go into a ReleasedFrames, which the caller empties without holding its lock: the last
// frame of a transfer runs that transfer's `done`.
//
// Ownership: the outbox owns frames and chunks; data by reference belongs to whoever appended it. Threads: none of its
//   own; the channel's mutex guards every call. What collect() returned stays valid, unguarded, until batch_done().
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

// Data sent from where it lies. Its frames share this; the last one to go runs `done`.
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
    std::uint64_t sequence = 0;  // once it is collected
    FrameType type = FrameType::control;
    BulkHeader bulk;                  // of a bulk frame
    const std::byte* data = nullptr;  // in `chunk`, or by reference
    std::size_t bytes = 0;
    std::size_t records = 0;             // that it consists of, where it does
    std::shared_ptr<Chunk> chunk;        // keeps copied data
    std::shared_ptr<Transfer> transfer;  // of data by reference

    [[nodiscard]] std::size_t payload_bytes() const noexcept {
        return bytes + (type == FrameType::bulk ? sizeof(BulkHeader) : 0);
    }
};

using ReleasedFrames = std::vector<OutFrame>;

class Outbox {
  public:
    explicit Outbox(std::size_t frame_bytes) : frame_bytes_(frame_bytes) {}

    // Whether `bytes` more may be retained, beside fewer than so many records. Something larger than the limit may go
    // alone.
    [[nodiscard]] bool fits(std::size_t bytes, std::size_t limit_bytes, std::size_t limit_records) const noexcept;

    // Will soon need memory, which whoever can do so without a lock should give it.
    [[nodiscard]] bool wants_chunk() const noexcept {
        return current_ && !spare_ && current_->used > current_->capacity / 2;
    }
    [[nodiscard]] std::size_t chunk_bytes() const noexcept { return frame_bytes_; }
    // The chunk that is not needed after all.
    [[nodiscard]] std::shared_ptr<Chunk> give_chunk(std::shared_ptr<Chunk> chunk) noexcept {
        return spare_ ? std::move(chunk) : std::exchange(spare_, std::move(chunk));
    }

    // Place for one record of `bytes`, a multiple of 8, at the end of the open frame or in a new one.
    std::byte* add_record(FrameType type, std::size_t bytes);

    // The same for one that does not wait behind bulk data that is not sent yet, behind urgent ones before it.
    std::byte* add_urgent_record(FrameType type, std::size_t bytes);

    // A frame of its own. Returns its sequence, as far as no urgent record goes before it.
    std::uint64_t add_frame(OutFrame frame);

    [[nodiscard]] bool has_unsent() const noexcept { return sent_ < last_sequence(); }
    [[nodiscard]] std::uint64_t last_sequence() const noexcept { return first_ + frames_.size() - 1; }
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    [[nodiscard]] std::uint64_t attempted() const noexcept { return attempted_; }
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }
    // Urgent records that went before others so far: so much later is what was appended before them and not attempted.
    [[nodiscard]] std::uint64_t overtakes() const noexcept { return overtakes_; }
    // Frames, sent and unsent.
    [[nodiscard]] std::size_t retained() const noexcept { return frames_.size(); }

    // The only frame that is not sent, where it is one and of records: nothing else would have to be kept or told.
    [[nodiscard]] const OutFrame* only_unsent() const noexcept {
        const bool one = !in_flight_ && open_ && sent_ + 1 == last_sequence();
        return one ? &frames_[frames_.size() - 1] : nullptr;
    }
    // It was sent.
    void only_unsent_sent() noexcept {
        attempted_ = sent_ = last_sequence();
        open_ = false;
    }

    // The next frames to send, as copies that hold no references (sequence, type, bulk, data, bytes): at least one
    // where there is one, then up to the limits. The open frame is closed when it is among them.
    void collect(std::vector<OutFrame>& batch, std::size_t max_frames, std::size_t max_bytes);

    // The batch that was collected is no longer being sent. When it was `delivered`, it counts as sent, and with
    // `drop_transfers` data by reference is let go of.
    void batch_done(bool delivered, bool drop_transfers, ReleasedFrames& released);

    // The peer has everything up to `sequence`. False when it cannot have.
    [[nodiscard]] bool acknowledge(std::uint64_t sequence, ReleasedFrames& released);

    // Sending continues after what the peer has. Only when no batch is being sent.
    void rewind() noexcept { sent_ = acknowledged_; }

    // Everything goes. Only when no batch is being sent.
    void clear(ReleasedFrames& released);

  private:
    static constexpr std::size_t kFrameOverheadBytes = 128;  // header and bookkeeping, so that tiny frames count too

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
    std::uint64_t last_urgent_ = 0;  // of those that went before others
    std::uint64_t overtakes_ = 0;
    bool open_ = false;       // frames_.back() takes further records
    bool in_flight_ = false;  // frames in (sent_, in_flight_end_] are being sent
    std::uint64_t in_flight_end_ = 0;
    std::size_t retained_bytes_ = 0;
    std::size_t retained_records_ = 0;
    std::shared_ptr<Chunk> current_;  // where records go
    std::shared_ptr<Chunk> spare_;    // the last one that became free
};

}  // namespace gpupool::wire
