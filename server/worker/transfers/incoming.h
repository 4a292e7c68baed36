// Bulk data on its way from the client: what was asked for, where it goes, what has landed.
//
// A piece is announced with expect() before the client is asked for it, so the receiving thread finds its place;
// anything that was not announced is refused. Over the session's own connection a piece comes in order, in parts of any
// size; over a lane, of which there are several at a time, it comes whole.
//
// What the client sends ahead, unasked, comes over lanes as well. Mostly it is expected by then and lands in its place;
// a lane that is early waits a little. Then a piece lands in memory of its own, which is bounded, and is copied when it
// is expected; so is one of which smaller parts are expected.
//
// What was asked for and is not wanted any more may come all the same: the client may have sent it already, or never
// will. It goes nowhere then; the memory that waited for it is free at once, or as soon as nobody is writing to it.
//
// Threads: expect(), take_landed(), forget() and abandon() the dispatcher's; place() and landed() the receiving
//   thread's; claim() and landed_whole() the lanes'.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "common/counting_condition.h"
#include "common/mutex.h"
#include "protocol/codec/record.h"

namespace gpupool::worker {

class Incoming {
  public:
    struct Piece {
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::byte* place = nullptr;
        std::size_t received_bytes = 0;
        bool claimed = false;                            // a lane is about to fill it
        bool filling = false;                            // a part of it is being received
        bool copying = false;                            // what was early of it is being copied
        std::shared_ptr<std::byte[]> nowhere = nullptr;  // for a part of what is not wanted any more
    };
    // Takes back what was given to expect().
    using GiveBack = std::function<void(std::byte*)>;
    static constexpr std::size_t kMaxAbandoned = 4096;  // transfers whose data may yet come
    // So long a lane keeps a piece waiting that is early.
    static constexpr std::chrono::milliseconds kEarlyTimeout{2};
    // What early pieces take. A client keeps to codec::kMaxAheadBytes, and has few pieces that are small.
    static constexpr std::size_t kMaxEarlyBytes = codec::kMaxAheadBytes + (8u << 20), kLeastEarlyBytes = 4u << 10;

    // Its first `ahead_bytes` come unasked. False when a transfer of that name is under way.
    bool begin(std::uint64_t transfer, std::uint64_t ahead_bytes = 0);
    void expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place);
    // Where these bytes go; empty when nobody asked for them.
    std::span<std::byte> place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    // The place of a whole piece, which nobody else is given from now on; empty when nobody asked for it.
    std::span<std::byte> claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed_whole(std::uint64_t transfer, std::uint64_t offset);
    // The transfer's next piece in order, once all of it is here; what was early of it is copied to its place.
    std::optional<Piece> take_landed(std::uint64_t transfer);
    // All that was expected has been taken, and no more is wanted.
    void forget(std::uint64_t transfer);
    // No more of it is wanted; it need not have begun. `give_back` is given each place of a piece that has not been
    // taken, once nobody writes to it any more: now, or by the thread that does.
    void abandon(std::uint64_t transfer, GiveBack give_back);

  private:
    // A piece that came over a lane before it was expected.
    struct Early {
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::size_t counted_bytes = 0;  // of early_bytes_
        std::unique_ptr<std::byte[]> data;
        bool landed = false;
    };
    struct Transfer {
        std::deque<Piece> pieces;
        std::list<Early> early;
        bool begun = false;
        std::uint64_t ahead_bytes = 0;
        std::uint64_t came_ahead_bytes = 0;  // or are about to
        GiveBack give_back;                  // set once it is abandoned
    };
    using Transfers = std::unordered_map<std::uint64_t, Transfer>;

    template <class Wanted>
    Piece* find(std::uint64_t transfer, const Wanted& wanted) GP_REQUIRES(mutex_);
    static std::span<std::byte> destination(Piece& piece, std::size_t bytes);
    std::span<std::byte> early_place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes)
        GP_REQUIRES(mutex_);
    std::list<Early>::iterator drop_early(Transfer& transfer, std::list<Early>::iterator early) GP_REQUIRES(mutex_);
    void fill_from_early(UniqueLock& lock, Transfer& transfer, Piece& piece) GP_REQUIRES(mutex_);
    [[nodiscard]] bool is_coming(std::uint64_t transfer, std::uint64_t offset) const GP_REQUIRES(mutex_);
    [[nodiscard]] bool is_abandoned(std::uint64_t transfer) const GP_REQUIRES(mutex_);
    static void note_ahead(Transfer& transfer, std::uint64_t offset, std::size_t bytes);
    // Abandoned, and nobody writes to it, and nothing of it is to come.
    static bool is_over(const Transfer& transfer);
    void drop_oldest_abandoned() GP_REQUIRES(mutex_);
    void part_landed(std::uint64_t transfer, Piece& piece, std::size_t bytes) GP_REQUIRES(mutex_);

    Mutex mutex_;
    Transfers transfers_ GP_GUARDED_BY(mutex_);
    std::size_t early_bytes_ GP_GUARDED_BY(mutex_) = 0;
    CountingCondition expected_;
    std::deque<std::uint64_t> abandoned_ GP_GUARDED_BY(mutex_);  // in their order; some may be gone
};

}  // namespace gpupool::worker
