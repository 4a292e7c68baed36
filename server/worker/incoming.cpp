#include "server/worker/incoming.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace gpupool::worker {

bool Incoming::begin(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    return transfers_.try_emplace(transfer).second;
}

void Incoming::expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place) {
    const std::lock_guard lock(mutex_);
    transfers_[transfer].pieces.push_back({offset, bytes, place});
}

// With the lock held: the first piece of the transfer that is wanted.
template <class Wanted>
Incoming::Piece* Incoming::find(std::uint64_t transfer, const Wanted& wanted) {
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return nullptr;
    }
    auto& pieces = it->second.pieces;
    const auto piece = std::find_if(pieces.begin(), pieces.end(), wanted);
    return piece == pieces.end() ? nullptr : &*piece;
}

// With the lock held: where the next part of the piece goes.
std::span<std::byte> Incoming::destination(Piece& piece, std::size_t bytes) {
    piece.filling = true;
    if (piece.place != nullptr) {
        return {piece.place + piece.received_bytes, bytes};
    }
    piece.nowhere = std::make_shared<std::byte[]>(bytes);
    return {piece.nowhere.get(), bytes};
}

std::span<std::byte> Incoming::place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Piece* const piece = find(transfer, [&](const Piece& candidate) {
        return !candidate.claimed && offset == candidate.offset + candidate.received_bytes &&
               bytes <= candidate.bytes - candidate.received_bytes;
    });
    return piece == nullptr ? std::span<std::byte>() : destination(*piece, bytes);
}

void Incoming::landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Piece* const piece = find(transfer, [&](const Piece& candidate) {
        return offset == candidate.offset + candidate.received_bytes &&
               bytes <= candidate.bytes - candidate.received_bytes;
    });
    if (piece != nullptr) {
        part_landed(transfer, *piece, bytes);
    }
}

std::span<std::byte> Incoming::claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Piece* const piece = find(transfer, [&](const Piece& candidate) {
        return candidate.offset == offset && candidate.bytes == bytes && candidate.received_bytes == 0 &&
               !candidate.claimed;
    });
    if (piece == nullptr) {
        return {};
    }
    piece->claimed = true;
    return destination(*piece, bytes);
}

void Incoming::landed_whole(std::uint64_t transfer, std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    Piece* const piece =
        find(transfer, [&](const Piece& candidate) { return candidate.offset == offset && candidate.claimed; });
    if (piece != nullptr) {
        part_landed(transfer, *piece, piece->bytes);
    }
}

// With the lock held.
void Incoming::part_landed(std::uint64_t transfer, Piece& piece, std::size_t bytes) {
    piece.received_bytes += bytes;
    piece.filling = false;
    piece.nowhere.reset();
    const auto it = transfers_.find(transfer);
    if (!it->second.give_back) {
        return;
    }
    if (piece.place != nullptr) {  // it was abandoned meanwhile
        it->second.give_back(std::exchange(piece.place, nullptr));
    }
    auto& pieces = it->second.pieces;
    std::erase_if(pieces, [](const Piece& one) { return one.received_bytes == one.bytes; });
    if (pieces.empty()) {
        transfers_.erase(it);
    }
}

std::optional<Incoming::Piece> Incoming::take_landed(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end() || it->second.pieces.empty() ||
        it->second.pieces.front().received_bytes < it->second.pieces.front().bytes) {
        return std::nullopt;
    }
    const Piece piece = it->second.pieces.front();
    it->second.pieces.pop_front();
    return piece;
}

void Incoming::forget(std::uint64_t transfer) {
    const std::lock_guard lock(mutex_);
    transfers_.erase(transfer);
}

void Incoming::abandon(std::uint64_t transfer, GiveBack give_back) {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return;
    }
    for (Piece& piece : it->second.pieces) {
        if (!piece.filling) {
            give_back(std::exchange(piece.place, nullptr));
        }
    }
    auto& pieces = it->second.pieces;
    std::erase_if(pieces, [](const Piece& one) { return one.received_bytes == one.bytes; });
    if (pieces.empty()) {
        transfers_.erase(it);
        return;
    }
    it->second.give_back = std::move(give_back);
    abandoned_.push_back(transfer);
    if (abandoned_.size() > kMostAbandoned) {
        drop_oldest_abandoned();
    }
}

// With the lock held. Should its data come after all, nobody asked for them.
void Incoming::drop_oldest_abandoned() {
    const std::uint64_t oldest = abandoned_.front();
    abandoned_.pop_front();
    const auto it = transfers_.find(oldest);
    if (it == transfers_.end() || !it->second.give_back) {
        return;
    }
    const auto& pieces = it->second.pieces;
    if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.filling; })) {
        abandoned_.push_back(oldest);  // somebody writes to it
        return;
    }
    transfers_.erase(it);
}

}  // namespace gpupool::worker
