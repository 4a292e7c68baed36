#include "protocol/wire/outbox.h"

#include <algorithm>
#include <cassert>

namespace gpupool::wire {

bool Outbox::fits(std::size_t bytes, std::size_t limit_bytes, std::size_t limit_records) const noexcept {
    return retained_bytes_ == 0 ||
           (retained_bytes_ + bytes + kFrameOverheadBytes <= limit_bytes && retained_records_ < limit_records);
}

std::shared_ptr<Chunk> Outbox::take_chunk(std::size_t bytes) {
    const std::size_t wanted = std::max(bytes, frame_bytes_);
    if (spare_ && spare_->capacity >= wanted) {
        spare_->used = 0;
        return std::move(spare_);
    }
    return std::make_shared<Chunk>(wanted);
}

std::byte* Outbox::add_record(FrameType type, std::size_t bytes) {
    assert(bytes % 8 == 0);
    const bool room = current_ && current_->capacity - current_->used >= bytes;
    const bool joins = open_ && room && frames_.back().type == type && frames_.back().bytes + bytes <= frame_bytes_;
    if (!joins) {
        if (!room) {
            current_ = take_chunk(bytes);
        }
        OutFrame frame;
        frame.type = type;
        frame.data = current_->data.get() + current_->used;
        frame.chunk = current_;
        add_frame(std::move(frame));
        open_ = true;
    }
    std::byte* place = current_->data.get() + current_->used;
    current_->used += bytes;
    frames_.back().bytes += bytes;
    ++frames_.back().records;
    retained_bytes_ += bytes;
    ++retained_records_;
    return place;
}

std::byte* Outbox::add_urgent_record(FrameType type, std::size_t bytes) {
    const std::uint64_t before = std::max(attempted_, last_urgent_) + 1;
    bool passes_bulk = false;
    for (std::uint64_t other = before; other <= last_sequence() && !passes_bulk; ++other) {
        passes_bulk = frames_[static_cast<std::size_t>(other - first_)].type == FrameType::bulk;
    }
    if (!passes_bulk) {
        return add_record(type, bytes);
    }
    OutFrame frame;
    frame.type = type;
    frame.chunk = std::make_shared<Chunk>(bytes);
    frame.data = frame.chunk->data.get();
    frame.bytes = bytes;
    frame.records = 1;
    std::byte* const place = frame.chunk->data.get();
    insert(static_cast<std::size_t>(before - first_), std::move(frame));
    last_urgent_ = before;
    ++overtakes_;
    return place;
}

std::uint64_t Outbox::add_frame(OutFrame frame) {
    open_ = false;
    insert(frames_.size(), std::move(frame));
    return last_sequence();
}

void Outbox::insert(std::size_t at, OutFrame frame) {
    retained_bytes_ += frame.payload_bytes() + kFrameOverheadBytes;
    retained_records_ += frame.records;
    frames_.insert(at, std::move(frame));
}

void Outbox::collect(std::vector<OutFrame>& batch, std::size_t max_frames, std::size_t max_bytes) {
    assert(!in_flight_);
    batch.clear();
    std::size_t bytes = 0;
    std::uint64_t next = sent_ + 1;
    for (; next <= last_sequence() && batch.size() < max_frames; ++next) {
        const OutFrame& frame = frames_[static_cast<std::size_t>(next - first_)];
        if (!batch.empty() && bytes + frame.payload_bytes() > max_bytes) {
            break;
        }
        bytes += frame.payload_bytes();
        batch.push_back({next, frame.type, frame.bulk, frame.data, frame.bytes, frame.records, nullptr, nullptr});
    }
    in_flight_ = true;
    in_flight_end_ = next - 1;
    attempted_ = std::max(attempted_, in_flight_end_);
    if (in_flight_end_ == last_sequence()) {
        open_ = false;
    }
}

void Outbox::batch_done(bool delivered, bool drop_transfers, ReleasedFrames& released) {
    assert(in_flight_);
    in_flight_ = false;
    if (delivered) {
        for (std::uint64_t sequence = sent_ + 1; drop_transfers && sequence <= in_flight_end_; ++sequence) {
            OutFrame& frame = frames_[static_cast<std::size_t>(sequence - first_)];
            if (!frame.transfer) {
                continue;
            }
            frame.data = nullptr;  // never sent again without resumption
            OutFrame gone;
            gone.transfer = std::move(frame.transfer);
            released.push_back(std::move(gone));
        }
        sent_ = in_flight_end_;
    }
    release(released);
}

bool Outbox::acknowledge(std::uint64_t sequence, ReleasedFrames& released) {
    if (sequence > attempted_) {
        return false;
    }
    acknowledged_ = std::max(acknowledged_, sequence);
    release(released);
    return true;
}

// Keeps frames of a batch that is being sent even if the peer has acknowledged them: their memory is in use.
void Outbox::release(ReleasedFrames& released) {
    const std::uint64_t through = in_flight_ ? std::min(acknowledged_, sent_) : acknowledged_;
    while (first_ <= through) {
        release_frame(std::move(frames_.front()), released);
        frames_.pop_front();
        ++first_;
    }
    sent_ = std::max(sent_, first_ - 1);
}

void Outbox::release_frame(OutFrame&& frame, ReleasedFrames& released) {
    retained_bytes_ -= frame.payload_bytes() + kFrameOverheadBytes;
    retained_records_ -= frame.records;
    if (!spare_ && frame.chunk && frame.chunk != current_ && frame.chunk.use_count() == 1 &&
        frame.chunk->capacity == frame_bytes_) {
        spare_ = std::move(frame.chunk);
    }
    const bool last_of_chunk = frame.chunk && frame.chunk.use_count() == 1;
    if (last_of_chunk || frame.transfer) {
        released.push_back(std::move(frame));
    }
}

void Outbox::clear(ReleasedFrames& released) {
    assert(!in_flight_);
    acknowledged_ = last_sequence();
    attempted_ = std::max(attempted_, acknowledged_);
    open_ = false;
    release(released);
}

}  // namespace gpupool::wire
