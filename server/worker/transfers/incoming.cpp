#include "server/worker/transfers/incoming.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace gpupool::worker {

bool Incoming::begin(std::uint64_t transfer, std::uint64_t ahead_bytes) {
    const Lock lock(mutex_);
    Transfer& begun = transfers_[transfer];
    if (std::exchange(begun.begun, true)) {
        return false;
    }
    begun.ahead_bytes = ahead_bytes;
    return true;
}

void Incoming::expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place) {
    bool awaited = false;
    {
        const Lock lock(mutex_);
        transfers_[transfer].pieces.push_back({offset, bytes, place});
        awaited = expected_.has_waiters();
    }
    if (awaited) {
        expected_.notify_all();
    }
}

// Called with the lock held. The transfer's first piece for which `wanted` is true.
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

// Called with the lock held. Where the next part of the piece goes.
std::span<std::byte> Incoming::destination(Piece& piece, std::size_t bytes) {
    piece.filling = true;
    if (piece.place != nullptr) {
        return {piece.place + piece.received_bytes, bytes};
    }
    piece.discarded = std::make_shared<std::byte[]>(bytes);
    return {piece.discarded.get(), bytes};
}

std::span<std::byte> Incoming::place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    Piece* const piece = find(transfer, [&](const Piece& candidate) {
        return !candidate.claimed && !candidate.copying && offset == candidate.offset + candidate.received_bytes &&
               bytes <= candidate.bytes - candidate.received_bytes;
    });
    return piece == nullptr ? std::span<std::byte>() : destination(*piece, bytes);
}

void Incoming::landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    Piece* const piece = find(transfer, [&](const Piece& candidate) {
        return offset == candidate.offset + candidate.received_bytes &&
               bytes <= candidate.bytes - candidate.received_bytes;
    });
    if (piece != nullptr) {
        part_landed(transfer, *piece, bytes);
    }
}

std::span<std::byte> Incoming::claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    UniqueLock lock(mutex_);
    const auto expected = [&]() GP_REQUIRES(mutex_) {
        return find(transfer, [&](const Piece& candidate) {
            return candidate.offset == offset && candidate.bytes == bytes && candidate.received_bytes == 0 &&
                   !candidate.claimed && !candidate.filling && !candidate.copying;
        });
    };
    // Its command is still on the way over another connection, or no memory is free yet.
    if ((transfer & codec::kTransferSentAhead) != 0 && expected() == nullptr) {
        expected_.wait_for(
            lock, kEarlyTimeout, [&]() GP_REQUIRES(mutex_) { return expected() != nullptr || is_abandoned(transfer); },
            clock_);
    }
    if (is_coming(transfer, offset)) {
        return {};
    }
    Piece* const piece = expected();
    if (piece == nullptr) {
        return early_place(transfer, offset, bytes);
    }
    note_ahead(transfers_.find(transfer)->second, offset, bytes);
    piece->claimed = true;
    return destination(*piece, bytes);
}

// Called with the lock held. True if another connection is already receiving this piece. No honest client sends a piece
// twice: the worker could not tell which of the two has landed.
bool Incoming::is_coming(std::uint64_t transfer, std::uint64_t offset) const {
    const auto it = transfers_.find(transfer);
    return it != transfers_.end() && (std::any_of(it->second.pieces.begin(), it->second.pieces.end(),
                                                  [&](const Piece& piece) {
                                                      return piece.offset == offset && (piece.claimed || piece.filling);
                                                  }) ||
                                      std::any_of(it->second.early.begin(), it->second.early.end(),
                                                  [&](const Early& early) { return early.offset == offset; }));
}

// Called with the lock held.
bool Incoming::is_abandoned(std::uint64_t transfer) const {
    const auto it = transfers_.find(transfer);
    return it != transfers_.end() && it->second.give_back;
}

// Called with the lock held. The place of a piece that is not expected, which must be one that is sent ahead.
std::span<std::byte> Incoming::early_place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const auto it = transfers_.find(transfer);
    const bool known = it != transfers_.end(), abandoned = known && it->second.give_back;
    // Data of an abandoned transfer is freed as soon as it has landed.
    const std::size_t counted_bytes = abandoned ? 0 : std::max(bytes, kLeastEarlyBytes);
    if ((transfer & codec::kTransferSentAhead) == 0 || (transfer & codec::kTransferOfWorker) != 0 ||
        early_bytes_ + counted_bytes > kMaxEarlyBytes ||
        (known && it->second.begun && (offset >= it->second.ahead_bytes || bytes > it->second.ahead_bytes - offset))) {
        return {};
    }
    Transfer& of = known ? it->second : transfers_[transfer];
    note_ahead(of, offset, bytes);
    early_bytes_ += counted_bytes;
    Early& early = of.early.emplace_back();
    early.offset = offset;
    early.bytes = bytes;
    early.counted_bytes = counted_bytes;
    early.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return {early.data.get(), bytes};
}

void Incoming::note_ahead(Transfer& transfer, std::uint64_t offset, std::size_t bytes) {
    if (!transfer.begun || offset < transfer.ahead_bytes) {
        transfer.arrived_ahead_bytes += bytes;
    }
}

std::list<Incoming::Early>::iterator Incoming::drop_early(Transfer& transfer, std::list<Early>::iterator early) {
    early_bytes_ -= early->counted_bytes;
    return transfer.early.erase(early);
}

void Incoming::landed_whole(std::uint64_t transfer, std::uint64_t offset) {
    const Lock lock(mutex_);
    const auto it = transfers_.find(transfer);  // the transfer exists as long as a thread writes to it
    auto& pieces = it->second.pieces;
    const auto piece = std::find_if(pieces.begin(), pieces.end(),
                                    [&](const Piece& one) { return one.offset == offset && one.claimed; });
    if (piece != pieces.end()) {
        part_landed(transfer, *piece, piece->bytes);
        return;
    }
    auto& all = it->second.early;
    const auto early = std::find_if(all.begin(), all.end(), [&](const Early& one) { return one.offset == offset; });
    early->landed = true;
    if (it->second.give_back) {
        drop_early(it->second, early);
        if (is_over(it->second)) {
            transfers_.erase(it);
        }
    }
}

// Called with the lock held.
void Incoming::part_landed(std::uint64_t transfer, Piece& piece, std::size_t bytes) {
    piece.received_bytes += bytes;
    piece.filling = false;
    piece.discarded.reset();
    const auto it = transfers_.find(transfer);
    if (!it->second.give_back) {
        return;
    }
    if (piece.place != nullptr) {  // the transfer was abandoned meanwhile
        it->second.give_back(std::exchange(piece.place, nullptr));
    }
    std::erase_if(it->second.pieces, [](const Piece& one) { return one.received_bytes == one.bytes; });
    if (is_over(it->second)) {
        transfers_.erase(it);
    }
}

bool Incoming::is_over(const Transfer& transfer) {
    return transfer.pieces.empty() && transfer.early.empty() && transfer.arrived_ahead_bytes >= transfer.ahead_bytes;
}

std::optional<Incoming::Piece> Incoming::take_landed(std::uint64_t transfer) {
    UniqueLock lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end() || it->second.pieces.empty()) {
        return std::nullopt;
    }
    Transfer& of = it->second;  // only the dispatcher ends transfers and pieces
    fill_from_early(lock, of, of.pieces.front());
    if (of.pieces.front().received_bytes < of.pieces.front().bytes) {
        return std::nullopt;
    }
    const Piece piece = of.pieces.front();
    of.pieces.pop_front();
    return piece;
}

// Copies without the lock, because lanes would wait for it.
void Incoming::fill_from_early(UniqueLock& lock, Transfer& transfer, Piece& piece) {
    while (!piece.filling && !piece.claimed && piece.received_bytes < piece.bytes) {
        const std::uint64_t from = piece.offset + piece.received_bytes;
        const auto early = std::find_if(transfer.early.begin(), transfer.early.end(), [&](const Early& one) {
            return one.landed && one.offset <= from && from - one.offset < one.bytes;
        });
        if (early == transfer.early.end()) {
            return;
        }
        const std::size_t within = from - early->offset;
        const std::size_t bytes = std::min(early->bytes - within, piece.bytes - piece.received_bytes);
        piece.copying = true;
        {
            const Unlocked unlocked(lock, mutex_);
            std::memcpy(piece.place + piece.received_bytes, early->data.get() + within, bytes);
        }
        piece.copying = false;
        piece.received_bytes += bytes;
        if (within + bytes == early->bytes) {
            drop_early(transfer, early);
        }
    }
}

void Incoming::forget(std::uint64_t transfer) {
    {
        const Lock lock(mutex_);
        if (const auto it = transfers_.find(transfer); it != transfers_.end()) {
            it->second.pieces.clear();
        }
    }
    abandon(transfer, [](std::byte*) {});
}

void Incoming::abandon(std::uint64_t transfer, GiveBack give_back) {
    const Lock lock(mutex_);
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) {
        return;
    }
    Transfer& of = it->second;
    for (Piece& piece : of.pieces) {
        if (!piece.filling) {
            give_back(std::exchange(piece.place, nullptr));
        }
    }
    std::erase_if(of.pieces, [](const Piece& one) { return one.received_bytes == one.bytes; });
    for (auto early = of.early.begin(); early != of.early.end();) {
        if (early->landed) {
            early = drop_early(of, early);
        } else {
            early_bytes_ -= std::exchange(early->counted_bytes, 0);  // freed as soon as it has landed
            ++early;
        }
    }
    if (is_over(of)) {
        transfers_.erase(it);
        return;
    }
    of.give_back = std::move(give_back);
    expected_.notify_all();
    abandoned_.push_back(transfer);
    if (abandoned_.size() > kMaxAbandoned) {
        drop_oldest_abandoned();
    }
}

// Called with the lock held. Data of it that arrives later is refused as not expected.
void Incoming::drop_oldest_abandoned() {
    const std::uint64_t oldest = abandoned_.front();
    abandoned_.pop_front();
    const auto it = transfers_.find(oldest);
    if (it == transfers_.end() || !it->second.give_back) {
        return;
    }
    const auto& pieces = it->second.pieces;
    if (!it->second.early.empty() ||
        std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.filling; })) {
        abandoned_.push_back(oldest);  // a thread writes to it
        return;
    }
    transfers_.erase(it);
}

}  // namespace gpupool::worker
