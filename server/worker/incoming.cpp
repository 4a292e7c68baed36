#include "server/worker/incoming.h"

namespace gpupool::worker {

bool Incoming::begin(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    return transfers_.try_emplace(transfer).second;
}

void Incoming::expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place) {
    const std::lock_guard lock(mutex_);
    transfers_[transfer].push_back({offset, bytes, place});
}

std::span<std::byte> Incoming::place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return {};
    }
    for (Piece& piece : it->second) {
        const std::uint64_t expected = piece.offset + piece.received_bytes;
        if (!piece.claimed && offset == expected && bytes <= piece.bytes - piece.received_bytes) {
            return {piece.place + piece.received_bytes, bytes};
        }
    }
    return {};
}

void Incoming::landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return;
    }
    for (Piece& piece : it->second) {
        if (offset == piece.offset + piece.received_bytes && bytes <= piece.bytes - piece.received_bytes) {
            piece.received_bytes += bytes;
            return;
        }
    }
}

std::span<std::byte> Incoming::claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return {};
    }
    for (Piece& piece : it->second) {
        if (piece.offset == offset && piece.bytes == bytes && piece.received_bytes == 0 && !piece.claimed) {
            piece.claimed = true;
            return {piece.place, bytes};
        }
    }
    return {};
}

void Incoming::landed_whole(std::uint64_t transfer, std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return;
    }
    for (Piece& piece : it->second) {
        if (piece.offset == offset && piece.claimed) {
            piece.received_bytes = piece.bytes;
            return;
        }
    }
}

std::optional<Incoming::Piece> Incoming::take_landed(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end() || it->second.empty() || it->second.front().received_bytes < it->second.front().bytes) {
        return std::nullopt;
    }
    const Piece piece = it->second.front();
    it->second.pop_front();
    return piece;
}

void Incoming::forget(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    transfers_.erase(transfer);
}

}  // namespace gpupool::worker
