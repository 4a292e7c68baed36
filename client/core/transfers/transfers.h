// Bulk data between the application's memory and the worker.
//
// Downloads (device to host) are registered before their command is sent. The receiving thread therefore knows the
// destination and writes the data there without a copy. If a download has to be scattered, each part first lands in a
// buffer. Over lanes, parts arrive in any order and several at a time. A download into memory that another one is still
// writing to avoids the lanes (codec::kTransferInOrder), or the earlier data might land last.
//
// Uploads (host to device) are read when the worker pulls them, when the copy is ready in its stream. This bounds
// memory on both sides. Up to codec::kMaxAheadBytes are sent ahead over lanes, if the worker will soon process the copy
// (Session::worker_is_near), which saves a round trip. If earlier work of the stream may write the source, the worker
// pulls only after the GPU has completed that work (gpStreamCatchUp), and the pull waits for earlier downloads into the
// same memory. A thread of its own answers pulls, because the receiving thread must never wait for the sending side.
//
// Rows that are read or written while the copy runs are packed and scattered part by part; a worker has a bounded
// number of parts under way. Rows that are packed at once, for a call that returns before its copy is executed, are
// limited to kMaxCopiedBytes: further calls wait.
//
// A faulty server may pull the same part twice, or pull from a transfer that has ended. So no memory is released while
// a connection may still read or write it, and the number of pending pulls is bounded.
//
// Ownership: uploads refer to their source, or own a copy if the application may change it.
// Threads: any thread begins transfers. Only the receiving thread calls place(), landed(), lost() and the methods for
// transfers that the worker numbers. Only lanes call begin_part() and end_part(). cancel() waits for those that are
// writing a part.
// Errors: false if the worker asks for something invalid.
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

#include "common/clock.h"
#include "common/mutex.h"
#include "common/pooled.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"

namespace gpupool::client {

class Transfers {
  public:
    static constexpr std::size_t kMaxPulls = 64u << 10;           // pending
    static constexpr std::size_t kMaxNamedTransfers = 64u << 10;  // under way
    // packed at once; a larger upload waits until it is the only one
    static constexpr std::uint64_t kMaxCopiedBytes = 128u << 20;

    // Copies the bytes at `offset` of packed data from, or to, their places in memory.
    using Gather = std::function<void(std::uint64_t offset, std::span<std::byte> packed)>;
    using Scatter = std::function<void(std::uint64_t offset, std::span<const std::byte> packed)>;

    explicit Transfers(TimeSource& clock = TimeSource::system()) : clock_(clock) {}

    // Starts the thread that answers pulls. `channel` and `lanes` (may be null) outlive this object. `begins` receives
    // the size of each transfer and must not block.
    void start(wire::Channel& channel, wire::Lanes* lanes = nullptr, std::function<void(std::size_t)> begins = {});
    // The connections have ended. Wakes all waiting threads, as soon as no thread is accessing the application's
    // memory.
    void end();

    // ---- downloads

    // Begins a download to `destination`; or, if the data is to be scattered between `lowest` and `highest`, one whose
    // parts are passed to `scatter`, by any receiving thread and several at a time.
    std::uint64_t begin_download(void* destination, std::uint64_t bytes);
    std::uint64_t begin_download(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest, Scatter scatter);
    // May the worker begin a transfer of that number and size? Not if it is under way already, or if too much is.
    [[nodiscard]] bool takes_named(std::uint64_t transfer, std::uint64_t bytes) const;
    // Begins a download for a graph's copy, under a number that the worker chose: to `destination`, or, if null, to
    // `scatter`.
    void begin_named_download(std::uint64_t transfer, std::uint64_t bytes, std::byte* destination, Scatter scatter);
    std::span<std::byte> place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed(std::uint64_t transfer, std::size_t bytes);
    void lost();
    // The same for a lane, which reports when it begins to write and when it has ended, with the data or without.
    std::span<std::byte> begin_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void end_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, bool whole);
    // The call failed: no data will arrive. False if there never was such a transfer.
    bool cancel(std::uint64_t transfer);
    // Does a download under way write into this range?
    [[nodiscard]] bool writes_into(const void* from, std::uint64_t bytes) const;

    // Waits until no transfer reads or writes this range of the application's memory.
    void wait_untouched(const void* from, std::uint64_t bytes) const;

    // ---- uploads

    std::uint64_t begin_upload(std::span<const std::byte> source);
    // The same for a source that may be read at once. The result says how much is to be sent ahead, possibly nothing.
    // Pass it to send_ahead() after the copy's command was sent.
    struct Ahead {
        std::uint64_t transfer = 0, bytes = 0;
    };
    Ahead begin_upload_ahead(std::span<const std::byte> source);
    void send_ahead(const Ahead& ahead);
    // The worker has taken the data that was sent ahead. False if there never was such a transfer.
    bool ahead_taken(std::uint64_t transfer);
    // Begins an upload of a copy of the data. May block until other such uploads have ended (kMaxCopiedBytes).
    std::uint64_t begin_upload(std::vector<std::byte> source);
    // Begins an upload whose data `gather` copies part by part as the worker pulls it, on the thread that answers
    // pulls. It reads the application's memory between `lowest` and `highest`, which must not change until then.
    std::uint64_t begin_upload(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest, Gather gather);
    // The worker pulls a part. False if there is no such data, or too many pulls are pending.
    bool pull(std::uint64_t transfer, std::uint64_t offset, std::uint64_t bytes);
    // Waits until all of the upload was sent and its source is the application's again. False if the session ended
    // first.
    bool wait_sent(std::uint64_t transfer);
    // Sends memory that a graph's copy reads, in pieces, under a number that the worker chose. Either `source` or
    // `copy` holds the data.
    void send_unasked(std::uint64_t transfer, std::span<const std::byte> source, std::vector<std::byte> copy,
                      std::size_t piece_bytes);

  private:
    struct Part {
        std::uint64_t offset = 0;
        std::vector<std::byte> data;
    };
    struct Download : Pooled {
        std::byte* destination = nullptr;  // null: each part lands in a buffer, then goes to `scatter`
        std::list<Part> parts;             // parts being received
        Scatter scatter;
        std::uint64_t bytes = 0, landed_bytes = 0;
        std::uint64_t lowest = 0, highest = 0;  // bounds of the memory written to
        bool named = false;                     // numbered by the worker
        std::size_t writers = 0;                // lanes that write a part, and threads that scatter one
        bool over = false;                      // cancelled: further data is discarded
        [[nodiscard]] bool is_large() const { return bytes >= wire::Lanes::kLeastPieceBytes; }
        [[nodiscard]] bool writes_into(std::uint64_t from, std::uint64_t to) const {
            return lowest < to && from < highest;
        }
    };
    struct Upload : Pooled {
        std::span<const std::byte> source;
        std::vector<std::byte> copy;
        Gather gather;  // instead of both
        std::uint64_t bytes = 0, sent_bytes = 0;
        std::uint64_t lowest = 0, highest = 0;  // bounds of the application's memory that is read
        std::size_t in_flight = 0;              // pieces that a connection may be reading
        bool over = false;                      // cancelled: no more is sent
        bool named = false;                     // numbered by the worker
        std::vector<std::uint64_t> waits_for;   // earlier downloads into the same memory
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
    std::uint64_t add_upload(std::span<const std::byte> source, std::uint64_t name_bits = 0) GP_REQUIRES(mutex_);
    std::uint64_t add(std::unique_ptr<Upload> upload, std::uint64_t name_bits = 0) GP_REQUIRES(mutex_);
    // How much of a new upload may be sent ahead.
    [[nodiscard]] std::uint64_t room_ahead(std::uint64_t bytes) const GP_REQUIRES(mutex_);
    void add_pulls(std::uint64_t transfer, std::uint64_t bytes, std::size_t piece_bytes, bool ahead)
        GP_REQUIRES(mutex_);
    void give_back_ahead(std::uint64_t transfer) GP_REQUIRES(mutex_);
    [[nodiscard]] bool was_begun(std::uint64_t transfer) const GP_REQUIRES(mutex_);
    static std::span<std::byte> place_of(Download* download, std::uint64_t offset, std::size_t bytes);
    std::optional<Part> take_part(Download& download, std::uint64_t offset, std::size_t bytes) GP_REQUIRES(mutex_);
    // Scatters a part that was received; releases the lock meanwhile.
    void scatter(UniqueLock& lock, Download& download, const std::optional<Part>& part) GP_REQUIRES(mutex_);
    // True if the transfer is complete.
    bool note_landed(std::uint64_t transfer, Download& download, std::size_t bytes) GP_REQUIRES(mutex_);
    [[nodiscard]] bool being_written(std::uint64_t transfer) const GP_REQUIRES(mutex_);
    void answer_pulls();
    void notify_of_pull();
    [[nodiscard]] bool may_read(const Upload& upload) const GP_REQUIRES(mutex_);
    void sent(std::uint64_t transfer, std::uint64_t bytes);
    void wait_for_room(UniqueLock& lock, std::uint64_t bytes) GP_REQUIRES(mutex_);
    // The downloads under way into a range that a new upload reads.
    [[nodiscard]] std::vector<std::uint64_t> downloads_into(std::uint64_t lowest, std::uint64_t highest) const
        GP_REQUIRES(mutex_);
    // True if the upload has ended.
    bool end_upload(std::uint64_t transfer) GP_REQUIRES(mutex_);
    std::uint64_t add_download(std::unique_ptr<Download> download) GP_REQUIRES(mutex_);
    // Must its data be received after that of downloads under way? Small data is always in order: it does not travel
    // over lanes.
    [[nodiscard]] bool must_follow(const Download& download) const GP_REQUIRES(mutex_);
    void end_download(std::uint64_t transfer) GP_REQUIRES(mutex_);

    TimeSource& clock_;
    mutable Mutex mutex_;
    mutable Condition changed_;  // a transfer has ended
    Condition pulled_;           // a pull was added
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);  // for the next two
    std::pmr::unordered_map<std::uint64_t, std::unique_ptr<Download>> downloads_ GP_GUARDED_BY(mutex_){&nodes_};
    std::pmr::unordered_map<std::uint64_t, std::unique_ptr<Upload>> uploads_ GP_GUARDED_BY(mutex_){&nodes_};
    std::size_t large_downloads_ GP_GUARDED_BY(mutex_) = 0;  // whose data may travel over lanes
    std::size_t named_ GP_GUARDED_BY(mutex_) = 0;            // transfers under way that the worker numbered
    std::uint64_t named_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t copied_bytes_ GP_GUARDED_BY(mutex_) = 0;  // bytes in buffers, of transfers that the client numbered
    std::unordered_map<std::uint64_t, std::uint64_t>
        ahead_;  // by transfer: bytes sent ahead that the worker has not taken yet
    std::uint64_t ahead_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::deque<Pull> pulls_ GP_GUARDED_BY(mutex_);
    // The latest ones: the worker may already have pulled parts of them.
    std::set<std::uint64_t> cancelled_ GP_GUARDED_BY(mutex_);
    // The transfer of which the receiving thread is receiving a part; 0: none.
    std::uint64_t receiving_ GP_GUARDED_BY(mutex_) = 0;
    std::uint64_t receiving_offset_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t receiving_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t in_use_ GP_GUARDED_BY(mutex_) = 0;  // parts that lanes write or any connection may read
    bool ending_ GP_GUARDED_BY(mutex_) = false;     // no more is sent
    bool ended_ GP_GUARDED_BY(mutex_) = false;
    wire::Channel* channel_ = nullptr;
    wire::Lanes* lanes_ = nullptr;
    std::function<void(std::size_t)> begins_;
};

}  // namespace gpupool::client
