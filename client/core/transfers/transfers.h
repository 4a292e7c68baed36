// Bulk data between the application's memory and the worker.
//
// Downloads (device to host) are announced before their command is sent, so the receiving thread finds where the data
// goes and puts it there without a copy; of one that has to be scattered each part lands in a buffer first. Over lanes
// the parts come in any order and several at a time.
//
// Uploads (host to device) are read when the worker pulls them, which it does when their turn in the stream has come:
// that bounds memory on both sides. What fits into a bounded credit is sent ahead of that, over lanes, where the
// worker will soon come to it (Session::worker_is_near): the data comes a round trip sooner. Where something before in
// stream order may write the source, the worker asks only when the GPU has come so far (gpStreamCatchUp), and a pull
// waits until downloads into the same memory that come before it have landed. Pulls are answered by a thread of their
// own: the receiving thread never waits for the sending side.
//
// Rows that are read or written when their turn comes are packed and scattered part by part, of which a worker has a
// bounded number on the way. Rows that are packed at once, as a call that ends before its copy needs it, are bounded:
// who would have more of them under way waits.
//
// A server may ask for the same part twice, or for a transfer that is over: no memory is let go while a connection may
// still read or write it, and what waits here is bounded.
//
// Ownership: uploads hold what they read from by reference, or a copy where the application may change it.
// Threads: any thread begins transfers; place(), landed(), lost() and the worker's named transfers the receiving
//   thread's; begin_part() and end_part() the lanes'. cancel() waits for those of them that are in the middle of a
//   part.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/pooled.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"

namespace gpupool::client {

class Transfers {
  public:
    static constexpr std::size_t kMaxPulls = 64u << 10;           // that wait
    static constexpr std::size_t kMaxNamedTransfers = 64u << 10;  // under way
    static constexpr std::uint64_t kMaxCopiedBytes = 128u << 20;  // packed at once; a larger one goes alone

    // Copies the bytes at `offset` of packed data from, or to, where they lie apart.
    using Gather = std::function<void(std::uint64_t offset, std::span<std::byte> packed)>;
    using Scatter = std::function<void(std::uint64_t offset, std::span<const std::byte> packed)>;

    // Begins the thread that answers pulls. `channel` and `lanes`, which may be null, outlive it. `begins` hears the
    // size of each transfer; it must not wait.
    void start(wire::Channel& channel, wire::Lanes* lanes = nullptr, std::function<void(std::size_t)> begins = {});
    // Nothing more will come, and the connections have ended: who waits goes on, as soon as none of them is in the
    // middle of the application's memory.
    void end();

    // ---- downloads

    // Where the data of a new transfer goes; or what is given each part of it as it lands, where it is to lie apart,
    // between `lowest` and `highest`: by whichever thread received it, several at a time.
    std::uint64_t begin_download(void* destination, std::uint64_t bytes);
    std::uint64_t begin_download(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest, Scatter scatter);
    // May the worker begin a transfer of that name and size? Not one that is under way, and not without end.
    [[nodiscard]] bool takes_named(std::uint64_t transfer, std::uint64_t bytes) const;
    // The same for data that a graph's copy writes, under the worker's name: to `destination`, or else to `scatter`.
    void begin_named_download(std::uint64_t transfer, std::uint64_t bytes, std::byte* destination, Scatter scatter);
    std::span<std::byte> place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed(std::uint64_t transfer, std::size_t bytes);
    void lost();
    // The same over a lane, which says when it begins to write and when it has ended, with the data or without.
    std::span<std::byte> begin_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void end_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, bool whole);
    // The call failed: no data will come.
    // False: there was never such a transfer.
    bool cancel(std::uint64_t transfer);
    // Does a download that is still under way write into this range?
    [[nodiscard]] bool writes_into(const void* from, std::uint64_t bytes) const;

    // Returns when no transfer reads or writes the application's memory there.
    void wait_untouched(const void* from, std::uint64_t bytes) const;

    // ---- uploads

    std::uint64_t begin_upload(std::span<const std::byte> source);
    // The same for a source that may be read at once. Of what it says is sent ahead, which may be nothing, send_ahead()
    // is to be told behind the copy's command.
    struct Ahead {
        std::uint64_t transfer = 0, bytes = 0;
    };
    Ahead begin_upload_ahead(std::span<const std::byte> source);
    void send_ahead(const Ahead& ahead);
    // The worker has taken it. False: there was never such a transfer.
    bool ahead_taken(std::uint64_t transfer);
    // Of a copy; may wait for others of its kind to end.
    std::uint64_t begin_upload(std::vector<std::byte> source);
    // Of what `gather` copies, part by part as the worker asks for it, on the thread that answers pulls: from the
    // application's memory between `lowest` and `highest`, which it must not change until then.
    std::uint64_t begin_upload(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest, Gather gather);
    // The worker asks for a part. False: it asks for what is not there, or for more at once than it may.
    bool pull(std::uint64_t transfer, std::uint64_t offset, std::uint64_t bytes);
    // Waits until all of it was handed over; the source is the application's again. False when the session ended first.
    bool wait_sent(std::uint64_t transfer);
    // Sends memory that a graph's copy reads, in pieces, under the worker's name for it. One of the two holds the data.
    void send_unasked(std::uint64_t transfer, std::span<const std::byte> source, std::vector<std::byte> copy,
                      std::size_t piece_bytes);

  private:
    struct Part {
        std::uint64_t offset = 0;
        std::vector<std::byte> data;
    };
    struct Download : Pooled {
        std::byte* destination = nullptr;  // null: each part to a buffer of its own, then `scatter`
        std::list<Part> parts;             // that are being received
        Scatter scatter;
        std::uint64_t bytes = 0, landed_bytes = 0;
        std::uint64_t lowest = 0, highest = 0;  // of the memory written to
        bool named = false;                     // by the worker
        std::size_t writers = 0;                // in the middle of a part: lanes, and who scatters one
        bool over = false;                      // cancelled: no more of it is taken
        [[nodiscard]] bool writes_into(std::uint64_t from, std::uint64_t to) const {
            return lowest < to && from < highest;
        }
    };
    struct Upload : Pooled {
        std::span<const std::byte> source;
        std::vector<std::byte> copy;
        Gather gather;  // instead of both
        std::uint64_t bytes = 0, sent_bytes = 0;
        std::uint64_t lowest = 0, highest = 0;  // of the application's memory that is read
        std::size_t in_flight = 0;              // pieces that the channel may read
        bool over = false;                      // cancelled: no more of it is sent
        bool named = false;                     // by the worker
        std::vector<std::uint64_t> waits_for;   // downloads into the same memory, begun before
    };
    struct Pull {
        std::uint64_t transfer, offset, bytes;
        bool ahead = false;
    };

    void begins(std::size_t bytes) const {
        if (begins_) {
            begins_(bytes);
        }
    }
    // With the lock held.
    std::uint64_t add_upload(std::span<const std::byte> source, std::uint64_t name_bits = 0) GP_REQUIRES(mutex_);
    std::uint64_t add(std::unique_ptr<Upload> upload, std::uint64_t name_bits = 0) GP_REQUIRES(mutex_);
    // With the lock held: how much of a new upload is sent ahead.
    [[nodiscard]] std::uint64_t room_ahead(std::uint64_t bytes) const GP_REQUIRES(mutex_);
    void add_pulls(std::uint64_t transfer, std::uint64_t bytes, std::size_t piece_bytes, bool ahead)
        GP_REQUIRES(mutex_);
    void give_back_ahead(std::uint64_t transfer) GP_REQUIRES(mutex_);
    [[nodiscard]] bool was_begun(std::uint64_t transfer) const GP_REQUIRES(mutex_);
    static std::span<std::byte> place_of(Download* download, std::uint64_t offset, std::size_t bytes);
    // With the lock held.
    static std::optional<Part> take_part(Download& download, std::uint64_t offset, std::size_t bytes);
    // Gives the part, received and taken, to where it goes; the lock is let go meanwhile.
    void scatter(UniqueLock& lock, Download& download, const std::optional<Part>& part) GP_REQUIRES(mutex_);
    // With the lock held; whether it was the end of the transfer.
    bool note_landed(std::uint64_t transfer, Download& download, std::size_t bytes) GP_REQUIRES(mutex_);
    [[nodiscard]] bool being_written(std::uint64_t transfer) const GP_REQUIRES(mutex_);
    void answer_pulls();
    void tell_of_pull();
    [[nodiscard]] bool may_read(const Upload& upload) const GP_REQUIRES(mutex_);
    void sent(std::uint64_t transfer, std::uint64_t bytes);
    void wait_for_room(UniqueLock& lock, std::uint64_t bytes) GP_REQUIRES(mutex_);
    // With the lock held: which downloads come before an upload that reads there?
    [[nodiscard]] std::vector<std::uint64_t> downloads_into(std::uint64_t lowest, std::uint64_t highest) const
        GP_REQUIRES(mutex_);
    // With the lock held; whether it was the end of it.
    bool end_upload(std::uint64_t transfer) GP_REQUIRES(mutex_);
    void end_download(std::uint64_t transfer) GP_REQUIRES(mutex_);

    mutable Mutex mutex_;
    mutable Condition changed_;  // a transfer ended
    Condition pulled_;           // the first pull came
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);  // of the next two
    std::pmr::unordered_map<std::uint64_t, std::unique_ptr<Download>> downloads_ GP_GUARDED_BY(mutex_){&nodes_};
    std::pmr::unordered_map<std::uint64_t, std::unique_ptr<Upload>> uploads_ GP_GUARDED_BY(mutex_){&nodes_};
    std::size_t named_ GP_GUARDED_BY(mutex_) = 0;  // transfers under way
    std::uint64_t named_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t copied_bytes_ GP_GUARDED_BY(mutex_) = 0;  // that are in buffers, of transfers without a name
    std::unordered_map<std::uint64_t, std::uint64_t>
        ahead_;  // bytes of each transfer that the worker has not taken yet
    std::uint64_t ahead_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::deque<Pull> pulls_ GP_GUARDED_BY(mutex_);
    // The newest, of which the worker may have asked for parts meanwhile.
    std::set<std::uint64_t> cancelled_ GP_GUARDED_BY(mutex_);
    // The transfer of which the receiving thread reads a part; 0: none.
    std::uint64_t receiving_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t receiving_offset_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t receiving_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t in_use_ GP_GUARDED_BY(mutex_) = 0;  // parts that lanes write, and that any connection may read
    bool ending_ GP_GUARDED_BY(mutex_) = false;     // no more is sent
    bool ended_ GP_GUARDED_BY(mutex_) = false;
    wire::Channel* channel_ = nullptr;
    wire::Lanes* lanes_ = nullptr;
    std::function<void(std::size_t)> begins_;
};

}  // namespace gpupool::client
