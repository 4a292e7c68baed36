#include "tests/conformance/lanes_fixture.h"

#include <algorithm>

namespace gpupool::testing {

void LaneRecorder::expect_transfer(std::uint64_t transfer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    transfers_[transfer] = std::vector<std::byte>(bytes);
}

bool LaneRecorder::wait_pieces(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return pieces_ >= count; });
}

bool LaneRecorder::wait_ended() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return times_ended_ != 0; });
}

std::vector<std::byte> LaneRecorder::data(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    return transfers_[transfer];
}

std::optional<Error> LaneRecorder::cause() {
    const std::lock_guard lock(mutex_);
    return cause_;
}

std::size_t LaneRecorder::pieces() {
    const std::lock_guard lock(mutex_);
    return pieces_;
}

std::size_t LaneRecorder::lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
}

std::size_t LaneRecorder::in_progress() {
    const std::lock_guard lock(mutex_);
    return in_progress_;
}

std::size_t LaneRecorder::times_ended() {
    const std::lock_guard lock(mutex_);
    return times_ended_;
}

std::span<std::byte> LaneRecorder::piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find(transfer);
    if (found == transfers_.end() || offset > found->second.size() || bytes > found->second.size() - offset) {
        return {};
    }
    ++in_progress_;
    return std::span(found->second).subspan(static_cast<std::size_t>(offset), bytes);
}

void LaneRecorder::on_piece(std::uint64_t, std::uint64_t, std::size_t) {
    const std::lock_guard lock(mutex_);
    ++pieces_;
    --in_progress_;
    changed_.notify_all();
}

void LaneRecorder::on_piece_lost(std::uint64_t, std::uint64_t, std::size_t) {
    const std::lock_guard lock(mutex_);
    ++lost_;
    --in_progress_;
}

void LaneRecorder::on_lanes_ended(const Error& cause) {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    ++times_ended_;
    changed_.notify_all();
}

Status send_all(wire::Lanes& lanes, std::uint64_t transfer, std::span<const std::byte> data, std::size_t piece_bytes,
                const std::function<void()>& done) {
    for (std::size_t offset = 0; offset < data.size(); offset += piece_bytes) {
        GPUPOOL_TRY(
            lanes.send(transfer, offset, data.subspan(offset, std::min(piece_bytes, data.size() - offset)), done));
    }
    return {};
}

}  // namespace gpupool::testing
