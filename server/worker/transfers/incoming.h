// Bulk data on its way from the client: what the worker expects, where it goes, what has landed.
//
// The dispatcher announces a piece with expect() before it asks the client for it, so the receiving thread always finds
// the piece's place. Data that was not announced is refused. Over the session's own connection a piece arrives in
// order, in parts of any size. Over a lane it arrives whole; several lanes may receive at once.
//
// Data that the client sends ahead, without being asked, also arrives over lanes. Usually it is expected by then and
// lands in its place. A lane that has a piece too early waits up to kEarlyTimeout. After that the piece lands in memory
// of its own, which is bounded, and is copied when it is expected. The same happens if smaller parts of it are
// expected.
//
// Data of an abandoned transfer may still arrive, because the client may have sent it before it heard of that; or it
// may never arrive. It is discarded. The memory that was reserved for it is returned at once, or as soon as no thread
// writes to it.
//
// Threads: begin(), expect(), take_landed(), forget() and abandon() are the dispatcher's; place() and landed() the
//   receiving thread's; claim() and landed_whole() the lanes'.
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

#include "common/clock.h"
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
        bool claimed = false;                              // a lane is filling it
        bool filling = false;                              // a part of it is being received
        bool copying = false;                              // early data is being copied to it
        std::shared_ptr<std::byte[]> discarded = nullptr;  // where a part lands that is to be discarded
    };
    // Takes back memory that was given to expect().
    using GiveBack = std::function<void(std::byte*)>;
    static constexpr std::size_t kMaxAbandoned = 4096;  // abandoned transfers whose data may still arrive
    // How long a lane waits before it receives a piece that is early.
    static constexpr std::chrono::milliseconds kEarlyTimeout{2};
    // Limit on the memory of early pieces, and the least that one counts. A client sends at most codec::kMaxAheadBytes
    // ahead, and few small pieces.
    static constexpr std::size_t kMaxEarlyBytes = codec::kMaxAheadBytes + (8u << 20), kLeastEarlyBytes = 4u << 10;

    explicit Incoming(TimeSource& clock = TimeSource::system()) : clock_(clock) {}

    // Its first `ahead_bytes` arrive without being asked for. False if a transfer of that name has begun already.
    bool begin(std::uint64_t transfer, std::uint64_t ahead_bytes = 0);
    void expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place);
    // Where these bytes go; empty if they are not expected.
    std::span<std::byte> place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    // The place of a whole piece, which is claimed for the caller; empty if it is not expected.
    std::span<std::byte> claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed_whole(std::uint64_t transfer, std::uint64_t offset);
    // Returns the transfer's next piece in order, once all of it has landed; copies early data to its place.
    std::optional<Piece> take_landed(std::uint64_t transfer);
    // Ends a transfer whose expected pieces have all been taken.
    void forget(std::uint64_t transfer);
    // Ends a transfer early; it need not have begun. Calls `give_back` with the place of each piece that has not been
    // taken, once no thread writes to it: now, or from the thread that does.
    void abandon(std::uint64_t transfer, GiveBack give_back);

  private:
    // A piece that arrived over a lane before it was expected.
    struct Early {
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::size_t counted_bytes = 0;  // its part of early_bytes_
        std::unique_ptr<std::byte[]> data;
        bool landed = false;
    };
    struct Transfer {
        std::deque<Piece> pieces;
        std::list<Early> early;
        bool begun = false;
        std::uint64_t ahead_bytes = 0;
        std::uint64_t arrived_ahead_bytes = 0;  // arrived, or arriving now
        GiveBack give_back;                     // set once the transfer is abandoned
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
    // True if no thread writes to the abandoned transfer and no more of its data can arrive.
    static bool is_over(const Transfer& transfer);
    void drop_oldest_abandoned() GP_REQUIRES(mutex_);
    void part_landed(std::uint64_t transfer, Piece& piece, std::size_t bytes) GP_REQUIRES(mutex_);

    TimeSource& clock_;
    Mutex mutex_;
    Transfers transfers_ GP_GUARDED_BY(mutex_);
    std::size_t early_bytes_ GP_GUARDED_BY(mutex_) = 0;
    CountingCondition expected_;
    std::deque<std::uint64_t> abandoned_ GP_GUARDED_BY(mutex_);  // oldest first; some may have ended
};

}  // namespace gpupool::worker
