#include "client/core/transfers/transfers.h"

#include <algorithm>
#include <utility>

#include "client/core/tracing/trace.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/quiet_thread.h"
#include "protocol/codec/record.h"

namespace gpupool::client {
namespace {

// Threads notice at once that their connection has ended. The timeout is for one that fails to.
constexpr std::chrono::seconds kEndTimeout{1};

}  // namespace

void Transfers::start(wire::Channel& channel, wire::Lanes* lanes, std::function<void(std::size_t)> begins) {
    channel_ = &channel;
    lanes_ = lanes;
    begins_ = std::move(begins);
    // Never ends, like the session.
    quiet_thread("gpupool-pulls", [this] { answer_pulls(); }).detach();
}

void Transfers::end() {
    UniqueLock lock(mutex_);
    ending_ = true;
    pulled_.notify_one();
    changed_.notify_all();
    clock_.wait_for(changed_, lock, kEndTimeout, [&]() GP_REQUIRES(mutex_) { return in_use_ == 0 && receiving_ == 0; });
    ended_ = true;
    changed_.notify_all();
}

std::uint64_t Transfers::begin_download(void* destination, std::uint64_t bytes) {
    begins(bytes);
    auto download = std::make_unique<Download>();
    download->destination = static_cast<std::byte*>(destination);
    download->bytes = bytes;
    download->lowest = reinterpret_cast<std::uint64_t>(destination);
    download->highest = download->lowest + bytes;
    const Lock lock(mutex_);
    return add_download(std::move(download));
}

std::uint64_t Transfers::begin_download(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest,
                                        Scatter scatter) {
    begins(bytes);
    auto download = std::make_unique<Download>();
    download->scatter = std::move(scatter);
    download->bytes = bytes;
    download->lowest = lowest;
    download->highest = highest;
    const Lock lock(mutex_);
    return add_download(std::move(download));
}

bool Transfers::must_follow(const Download& download) const {
    return (large_downloads_ != 0 || download.is_large()) &&
           std::any_of(downloads_.begin(), downloads_.end(),
                       [&](const auto& entry) { return entry.second->writes_into(download.lowest, download.highest); });
}

std::uint64_t Transfers::add_download(std::unique_ptr<Download> download) {
    const std::uint64_t transfer = next_++ | (must_follow(*download) ? codec::kTransferInOrder : 0);
    large_downloads_ += download->is_large() ? 1 : 0;
    downloads_[transfer] = std::move(download);
    return transfer;
}

bool Transfers::takes_named(std::uint64_t transfer, std::uint64_t bytes) const {
    const Lock lock(mutex_);
    return named_ < kMaxNamedTransfers && bytes <= codec::kMaxGraphCopyBytes &&
           named_bytes_ <= codec::kMaxGraphCopyBytes - bytes && !uploads_.contains(transfer) &&
           !downloads_.contains(transfer);
}

void Transfers::begin_named_download(std::uint64_t transfer, std::uint64_t bytes, std::byte* destination,
                                     Scatter scatter) {
    auto download = std::make_unique<Download>();
    download->bytes = bytes;
    download->destination = destination;
    download->scatter = std::move(scatter);
    download->named = true;
    const Lock lock(mutex_);
    ++named_;
    named_bytes_ += bytes;
    downloads_[transfer] = std::move(download);
}

std::span<std::byte> Transfers::place_of(Download* download, std::uint64_t offset, std::size_t bytes) {
    if (download == nullptr || download->over || offset > download->bytes || bytes > download->bytes - offset) {
        return {};
    }
    if (download->destination != nullptr) {
        return {download->destination + offset, bytes};
    }
    // A faulty server sends the same part twice at a time; the two buffers could not be distinguished.
    if (std::any_of(download->parts.begin(), download->parts.end(),
                    [&](const Part& part) { return part.offset == offset; })) {
        return {};
    }
    return download->parts.emplace_back(Part{offset, std::vector<std::byte>(bytes)}).data;
}

// None if the part was received directly into its destination.
std::optional<Transfers::Part> Transfers::take_part(Download& download, std::uint64_t offset, std::size_t bytes) {
    const auto it = std::find_if(download.parts.begin(), download.parts.end(),
                                 [&](const Part& part) { return part.offset == offset && part.data.size() == bytes; });
    if (it == download.parts.end()) {
        return std::nullopt;
    }
    Part part = std::move(*it);
    download.parts.erase(it);
    return part;
}

void Transfers::scatter(UniqueLock& lock, Download& download, const std::optional<Part>& part) {
    if (!part || download.over) {
        return;
    }
    ++download.writers;  // cancel() waits for it
    ++in_use_;
    {
        const Unlocked unlocked(lock, mutex_);
        download.scatter(part->offset, part->data);
    }
    --download.writers;
    --in_use_;
}

std::span<std::byte> Transfers::place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    const auto it = downloads_.find(transfer);
    const auto place = place_of(it == downloads_.end() ? nullptr : it->second.get(), offset, bytes);
    receiving_ = place.empty() ? 0 : transfer;
    receiving_offset_ = offset;
    receiving_bytes_ = bytes;
    return place;
}

void Transfers::lost() {
    {
        const Lock lock(mutex_);
        if (const auto it = downloads_.find(std::exchange(receiving_, 0)); it != downloads_.end()) {
            take_part(*it->second, receiving_offset_, receiving_bytes_);
        }
    }
    changed_.notify_all();
}

std::span<std::byte> Transfers::begin_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    const auto it = downloads_.find(transfer);
    const auto place = place_of(it == downloads_.end() ? nullptr : it->second.get(), offset, bytes);
    if (!place.empty()) {
        ++it->second->writers;
        ++in_use_;
    }
    return place;
}

bool Transfers::being_written(std::uint64_t transfer) const {
    const auto it = downloads_.find(transfer);
    return it != downloads_.end() && (it->second->writers != 0 || receiving_ == transfer);
}

bool Transfers::note_landed(std::uint64_t transfer, Download& download, std::size_t bytes) {
    download.landed_bytes += bytes;
    // A faulty server that sends too much may still be writing.
    if (download.landed_bytes < download.bytes || being_written(transfer) || download.over) {
        return false;
    }
    end_download(transfer);
    return true;
}

void Transfers::landed(std::uint64_t transfer, std::size_t bytes) {
    {
        UniqueLock lock(mutex_);
        const auto it = downloads_.find(transfer);
        if (it == downloads_.end()) {
            receiving_ = 0;
            return;
        }
        Download& download = *it->second;  // stays valid while the receiving thread writes a part of it
        scatter(lock, download, take_part(download, receiving_offset_, receiving_bytes_));
        receiving_ = 0;
        if (const bool over = download.over; !note_landed(transfer, download, bytes) && !over && !ending_) {
            return;
        }
    }
    changed_.notify_all();
}

void Transfers::end_part(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, bool whole) {
    {
        UniqueLock lock(mutex_);
        Download& download = *downloads_.find(transfer)->second;  // stays valid for its writer
        const std::optional<Part> part = take_part(download, offset, bytes);
        if (whole) {
            scatter(lock, download, part);
        }
        --download.writers;
        --in_use_;
        if (const bool over = download.over; !note_landed(transfer, download, whole ? bytes : 0) && !over && !ending_) {
            return;
        }
    }
    changed_.notify_all();
}

void Transfers::end_download(std::uint64_t transfer) {
    const auto it = downloads_.find(transfer);
    if (it == downloads_.end()) {
        return;
    }
    if (it->second->named) {
        --named_;
        named_bytes_ -= it->second->bytes;
    } else {
        large_downloads_ -= it->second->is_large() ? 1 : 0;
    }
    downloads_.erase(it);
}

bool Transfers::cancel(std::uint64_t transfer) {
    {
        UniqueLock lock(mutex_);
        const bool known = downloads_.contains(transfer) || uploads_.contains(transfer);
        if (!known && !was_begun(transfer) && (transfer & codec::kTransferOfWorker) == 0) {
            return false;
        }
        give_back_ahead(transfer);
        if (const auto it = downloads_.find(transfer); it != downloads_.end()) {
            it->second->over = true;
            clock_.wait(changed_, lock, [&]() GP_REQUIRES(mutex_) { return !being_written(transfer); });
        }
        end_download(transfer);
        if (const auto it = uploads_.find(transfer); it != uploads_.end()) {
            it->second->over = true;
            // ordered by number, so the oldest are dropped first
            cancelled_.insert(transfer & ~codec::kTransferSentAhead);
            if (cancelled_.size() > kMaxPulls) {
                cancelled_.erase(cancelled_.begin());
            }
            end_upload(transfer);
        }
    }
    changed_.notify_all();
    return true;
}

void Transfers::wait_for_room(UniqueLock& lock, std::uint64_t bytes) {
    const trace::Wait waiting;
    clock_.wait(changed_, lock, [&]() GP_REQUIRES(mutex_) {
        return ending_ || copied_bytes_ == 0 || copied_bytes_ + bytes <= kMaxCopiedBytes;
    });
    copied_bytes_ += bytes;
}

bool Transfers::end_upload(std::uint64_t transfer) {
    const auto it = uploads_.find(transfer);
    const Upload& upload = *it->second;
    if (upload.in_flight != 0 || (!upload.over && upload.sent_bytes < upload.bytes)) {
        return false;
    }
    if (upload.named) {
        --named_;
        named_bytes_ -= upload.bytes;
    } else {
        copied_bytes_ -= upload.copy.size();
    }
    uploads_.erase(it);
    return true;
}

bool Transfers::writes_into(const void* from, std::uint64_t bytes) const {
    const auto begin = reinterpret_cast<std::uint64_t>(from);
    const Lock lock(mutex_);
    return std::any_of(downloads_.begin(), downloads_.end(),
                       [&](const auto& entry) { return entry.second->writes_into(begin, begin + bytes); });
}

void Transfers::wait_untouched(const void* from, std::uint64_t bytes) const {
    const auto begin = reinterpret_cast<std::uint64_t>(from);
    const auto touches = [&](std::uint64_t lowest, std::uint64_t highest) {
        return lowest < begin + bytes && begin < highest;
    };
    const trace::Wait waiting(trace::For::data);
    UniqueLock lock(mutex_);
    clock_.wait(changed_, lock, [&]() GP_REQUIRES(mutex_) {
        return ended_ ||
               (std::none_of(downloads_.begin(), downloads_.end(),
                             [&](const auto& entry) { return touches(entry.second->lowest, entry.second->highest); }) &&
                std::none_of(uploads_.begin(), uploads_.end(),
                             [&](const auto& entry) { return touches(entry.second->lowest, entry.second->highest); }));
    });
}

std::uint64_t Transfers::begin_upload(std::span<const std::byte> source) {
    begins(source.size());
    const Lock lock(mutex_);
    return add_upload(source);
}

std::uint64_t Transfers::add_upload(std::span<const std::byte> source, std::uint64_t name_bits) {
    auto upload = std::make_unique<Upload>();
    upload->source = source;
    upload->bytes = source.size();
    upload->lowest = reinterpret_cast<std::uint64_t>(source.data());
    upload->highest = upload->lowest + source.size();
    return add(std::move(upload), name_bits);
}

std::uint64_t Transfers::add(std::unique_ptr<Upload> upload, std::uint64_t name_bits) {
    upload->waits_for = downloads_into(upload->lowest, upload->highest);
    const std::uint64_t transfer = next_++ | name_bits;
    uploads_[transfer] = std::move(upload);
    return transfer;
}

Transfers::Ahead Transfers::begin_upload_ahead(std::span<const std::byte> source) {
    begins(source.size());
    const Lock lock(mutex_);
    const std::uint64_t bytes = room_ahead(source.size());
    if (bytes == 0) {
        return {add_upload(source), 0};
    }
    const std::uint64_t transfer = add_upload(source, codec::kTransferSentAhead);
    ahead_[transfer] = bytes;
    ahead_bytes_ += bytes;
    return {transfer, bytes};
}

std::uint64_t Transfers::room_ahead(std::uint64_t bytes) const {
    if (lanes_ == nullptr || lanes_->count() == 0) {
        return 0;
    }
    const std::uint64_t room = codec::kMaxAheadBytes - ahead_bytes_;
    return bytes <= room ? bytes : room / codec::kAheadPieceBytes * codec::kAheadPieceBytes;
}

void Transfers::send_ahead(const Ahead& ahead) {
    if (ahead.bytes == 0) {
        return;
    }
    {
        const Lock lock(mutex_);
        add_pulls(ahead.transfer, ahead.bytes, codec::kAheadPieceBytes, true);
    }
    notify_of_pull();
}

void Transfers::add_pulls(std::uint64_t transfer, std::uint64_t bytes, std::size_t piece_bytes, bool ahead) {
    for (std::uint64_t offset = 0; offset < bytes; offset += piece_bytes) {
        pulls_.push_back({transfer, offset, std::min<std::uint64_t>(piece_bytes, bytes - offset), ahead});
    }
}

bool Transfers::ahead_taken(std::uint64_t transfer) {
    const Lock lock(mutex_);
    give_back_ahead(transfer);
    return was_begun(transfer);
}

void Transfers::give_back_ahead(std::uint64_t transfer) {
    if (const auto it = ahead_.find(transfer); it != ahead_.end()) {
        ahead_bytes_ -= it->second;
        ahead_.erase(it);
    }
}

bool Transfers::was_begun(std::uint64_t transfer) const {
    return (transfer & ~(codec::kTransferSentAhead | codec::kTransferInOrder)) < next_;
}

std::vector<std::uint64_t> Transfers::downloads_into(std::uint64_t lowest, std::uint64_t highest) const {
    std::vector<std::uint64_t> found;
    for (const auto& [transfer, download] : downloads_) {
        if (download->writes_into(lowest, highest)) {
            found.push_back(transfer);
        }
    }
    return found;
}

std::uint64_t Transfers::begin_upload(std::uint64_t bytes, std::uint64_t lowest, std::uint64_t highest, Gather gather) {
    begins(bytes);
    auto upload = std::make_unique<Upload>();
    upload->gather = std::move(gather);
    upload->bytes = bytes;
    upload->lowest = lowest;
    upload->highest = highest;
    const Lock lock(mutex_);
    return add(std::move(upload));
}

std::uint64_t Transfers::begin_upload(std::vector<std::byte> source) {
    begins(source.size());
    auto upload = std::make_unique<Upload>();
    upload->copy = std::move(source);
    upload->source = upload->copy;
    upload->bytes = upload->copy.size();
    UniqueLock lock(mutex_);
    wait_for_room(lock, upload->copy.size());
    return add(std::move(upload));  // reads none of the application's memory
}

void Transfers::send_unasked(std::uint64_t transfer, std::span<const std::byte> source, std::vector<std::byte> copy,
                             std::size_t piece_bytes) {
    auto upload = std::make_unique<Upload>();
    upload->copy = std::move(copy);
    upload->source = upload->copy.empty() ? source : upload->copy;
    upload->named = true;
    const std::size_t bytes = upload->bytes = upload->source.size();
    {
        const Lock lock(mutex_);
        ++named_;
        named_bytes_ += bytes;
        uploads_[transfer] = std::move(upload);
        add_pulls(transfer, bytes, piece_bytes, false);
    }
    notify_of_pull();
}

bool Transfers::pull(std::uint64_t transfer, std::uint64_t offset, std::uint64_t bytes) {
    {
        const Lock lock(mutex_);
        const auto it = uploads_.find(transfer);
        if (it == uploads_.end()) {
            return cancelled_.contains(transfer & ~codec::kTransferSentAhead);
        }
        const std::uint64_t all = it->second->bytes;
        if (offset > all || bytes > all - offset) {
            log::error("the server requests data beyond the end of a transfer");
            return false;
        }
        if (pulls_.size() >= kMaxPulls || (it->second->gather && bytes > wire::Lanes::kMaxPieceBytes)) {
            log::error("the server requests too much data at once");
            return false;
        }
        pulls_.push_back({transfer, offset, bytes, false});
    }
    notify_of_pull();
    return true;
}

// The thread may be waiting for a pull, or for the source of one to become readable.
void Transfers::notify_of_pull() {
    pulled_.notify_one();
    changed_.notify_all();
}

bool Transfers::wait_sent(std::uint64_t transfer) {
    UniqueLock lock(mutex_);
    clock_.wait(changed_, lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !uploads_.contains(transfer); });
    return !uploads_.contains(transfer);
}

bool Transfers::may_read(const Upload& upload) const {
    return std::none_of(upload.waits_for.begin(), upload.waits_for.end(),
                        [&](std::uint64_t transfer) GP_REQUIRES(mutex_) { return downloads_.contains(transfer); });
}

void Transfers::sent(std::uint64_t transfer, std::uint64_t bytes) {
    {
        const Lock lock(mutex_);
        const auto it = uploads_.find(transfer);
        if (it == uploads_.end()) {
            return;
        }
        it->second->sent_bytes += bytes;
        --it->second->in_flight;
        --in_use_;
        if (!end_upload(transfer) && !ending_) {
            return;
        }
    }
    changed_.notify_all();
}

void Transfers::answer_pulls() {
    UniqueLock lock(mutex_);
    while (true) {
        // The first pull whose source may be read now, so that a pull that has to wait does not delay others.
        const auto find = [&]() GP_REQUIRES(mutex_) {
            return std::find_if(pulls_.begin(), pulls_.end(), [&](const Pull& pull) GP_REQUIRES(mutex_) {
                const auto it = uploads_.find(pull.transfer);
                return it == uploads_.end() || it->second->over || may_read(*it->second);
            });
        };
        auto next = find();
        while (next == pulls_.end() && !ending_) {
            // Without pulls, wait for pulls only: otherwise every end of a download would cost the receiving thread a
            // system call to wake this one.
            clock_.wait_until(pulls_.empty() ? pulled_ : changed_, lock, TimeSource::kNever);
            next = find();
        }
        if (ending_) {
            return;
        }
        const Pull pull = *next;
        pulls_.erase(next);
        const auto it = uploads_.find(pull.transfer);
        if (it == uploads_.end() || it->second->over) {
            continue;  // cancelled
        }
        Upload& upload = *it->second;  // stays valid while a piece of it is in flight
        const bool over_lanes = pull.ahead || (lanes_ != nullptr && lanes_->take(pull.bytes) && !upload.named);
        ++upload.in_flight;
        ++in_use_;
        lock.unlock();
        std::span<const std::byte> part;
        std::shared_ptr<std::vector<std::byte>> packed;  // alive until no connection reads it
        if (upload.gather) {
            packed = std::make_shared<std::vector<std::byte>>(pull.bytes);
            upload.gather(pull.offset, *packed);
            part = *packed;
        } else {
            part = upload.source.subspan(pull.offset, pull.bytes);
        }
        auto done = [this, pull, packed] { sent(pull.transfer, pull.bytes); };
        // On failure the session ends and reports the error itself.
        (void)(over_lanes ? lanes_->send(pull.transfer, pull.offset, part, std::move(done))
                          : channel_->append_bulk(pull.transfer, pull.offset, part, std::move(done)));
        lock.lock();
    }
}

}  // namespace gpupool::client
