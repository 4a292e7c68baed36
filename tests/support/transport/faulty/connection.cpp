#include "tests/support/transport/faulty/connection.h"

#include <algorithm>
#include <vector>

#include "tests/support/transport/faulty/delay_line.h"

namespace gpupool::transport::faulty {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{250};  // beyond the line's own delay
constexpr std::byte kFlippedBit{0x10};

Error cut_error() {
    return {ErrorCode::closed, "the connection was cut (injected fault)"};
}

std::size_t pick(std::minstd_rand& random, std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(1, most)(random);
}

}  // namespace

FaultyConnection::FaultyConnection(std::unique_ptr<Connection> inner, const Faults& faults)
    : faults_(faults),
      inner_(std::move(inner)),
      send_random_(static_cast<std::uint32_t>(faults.seed * 2 + 1)),
      receive_random_(static_cast<std::uint32_t>(faults.seed * 2 + 2)) {
    if (faults_.delay.count() > 0 || faults_.throttle_bytes_per_second > 0) {
        line_ = std::make_unique<DelayLine>(*inner_, faults_.delay, faults_.throttle_bytes_per_second);
    }
}

FaultyConnection::~FaultyConnection() {
    // otherwise its thread might never end
    if (line_ && !line_->finish(faults_.delay + kShutdownGrace)) {
        inner_->shutdown();
    }
    line_.reset();
}

Status FaultyConnection::deliver(std::span<const ConstBuffer> buffers) {
    if (!line_) {
        return inner_->send(buffers);
    }
    for (const auto& buffer : buffers) {
        GPUPOOL_TRY(line_->push(buffer));
    }
    return {};
}

// Flips bits in `bytes`, which begin at `position` of the stream; the damage begins at `from`.
void FaultyConnection::damage(MutableBuffer bytes, std::uint64_t position, std::uint64_t from) const {
    const std::uint64_t end = std::min(position + bytes.size(), from + faults_.corrupt_bytes);
    for (std::uint64_t at = std::max(position, from); at < end; ++at) {
        bytes[static_cast<std::size_t>(at - position)] ^= kFlippedBit;
    }
}

Status FaultyConnection::send_piece(ConstBuffer piece) {
    while (!piece.empty()) {
        std::size_t count =
            faults_.split_bytes ? std::min(piece.size(), pick(send_random_, faults_.split_bytes)) : piece.size();
        if (faults_.cut_after_sent) {
            const std::uint64_t left = *faults_.cut_after_sent - std::min(*faults_.cut_after_sent, sent_bytes_);
            if (left == 0) {
                cut();
                return cut_error();
            }
            count = static_cast<std::size_t>(std::min<std::uint64_t>(count, left));
        }
        const ConstBuffer part = piece.first(count);
        if (faults_.corrupt_sent_at) {
            std::vector<std::byte> changed(part.begin(), part.end());
            damage(changed, sent_bytes_, *faults_.corrupt_sent_at);
            const ConstBuffer buffers[] = {changed};
            GPUPOOL_TRY(deliver(buffers));
        } else {
            const ConstBuffer buffers[] = {part};
            GPUPOOL_TRY(deliver(buffers));
        }
        sent_bytes_ += count;
        piece = piece.subspan(count);
    }
    return {};
}

Status FaultyConnection::send(std::span<const ConstBuffer> buffers) {
    if (cut_) {
        return cut_error();
    }
    if (shut_down_) {
        return Error{ErrorCode::closed, "the connection was closed"};
    }
    const bool whole = faults_.split_bytes == 0 && !faults_.cut_after_sent && !faults_.corrupt_sent_at;
    if (whole) {
        return deliver(buffers);  // keeps the gather write in one piece
    }
    for (const auto& buffer : buffers) {
        GPUPOOL_TRY(send_piece(buffer));
    }
    return {};
}

// Sends one split piece at most, so that callers see partial sends. A delay line takes everything; cuts and damage
// count whole sends.
Result<std::size_t> FaultyConnection::send_some(std::span<const ConstBuffer> buffers) {
    if (cut_) {
        return cut_error();
    }
    if (line_ || faults_.cut_after_sent || faults_.corrupt_sent_at || buffers.empty()) {
        return std::size_t{0};
    }
    if (faults_.split_bytes == 0) {
        return inner_->send_some(buffers);
    }
    const ConstBuffer first = buffers.front();
    const ConstBuffer piece[] = {first.first(std::min(first.size(), pick(send_random_, faults_.split_bytes)))};
    return inner_->send_some(piece);
}

Result<std::size_t> FaultyConnection::receive(MutableBuffer buffer) {
    if (cut_) {
        return cut_error();
    }
    if (faults_.split_bytes) {
        buffer = buffer.first(std::min(buffer.size(), pick(receive_random_, faults_.split_bytes)));
    }
    if (faults_.cut_after_received) {
        const std::uint64_t left = *faults_.cut_after_received - std::min(*faults_.cut_after_received, received_bytes_);
        if (left == 0) {
            cut();
            return cut_error();
        }
        buffer = buffer.first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), left)));
    }
    auto received = inner_->receive(buffer);
    if (!received) {
        return received;
    }
    if (faults_.corrupt_received_at) {
        damage(buffer.first(*received), received_bytes_, *faults_.corrupt_received_at);
    }
    received_bytes_ += *received;
    return received;
}

void FaultyConnection::shutdown() noexcept {
    shut_down_ = true;
    if (line_) {
        (void)line_->finish(faults_.delay + kShutdownGrace);
    }
    inner_->shutdown();
}

void FaultyConnection::cut() noexcept {
    cut_ = true;
    if (line_) {
        line_->abandon();
    }
    inner_->shutdown();
}

std::unique_ptr<FaultyConnection> wrap(std::unique_ptr<Connection> inner, const Faults& faults) {
    return std::make_unique<FaultyConnection>(std::move(inner), faults);
}

}  // namespace gpupool::transport::faulty
