// Copies between host and device.
//
// Small data travels in the command. Larger data passes through pinned staging memory in pieces: to the device, the
// session pulls it from the client unless the client sent it ahead; to the host, the session sends it. While one piece
// is on the network, another is on its way to or from the GPU. Later work of the stream is queued until the copy has
// been issued; other streams go on.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/log.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/transfers/copy_pieces.h"
#include "server/worker/transfers/host_traffic.h"
#include "server/worker/transfers/incoming.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker::handlers {
namespace {

// Staging chunks that one copy may have for pieces on the network (to the device) or in total (to the host). At 20 GB/s
// a chunk arrives every 50 us and takes eight times as long on its lane, one of eight, plus the request and the
// wake-ups. So about 16 have to be under way, twice as many if they arrive in bursts. More would only keep staging
// memory from other copies.
constexpr std::size_t kPiecesInFlight = 32;

// The device side of a copy: a plain range, or a shape whose host side is packed rows.
struct DeviceSide {
    CUdeviceptr address = 0;  // plain
    bool shaped = false;
    CopyShape shape{};

    [[nodiscard]] PieceCutter pieces(std::uint64_t bytes) const {
        return shaped ? PieceCutter(shape) : PieceCutter(bytes);
    }

    CUresult to_device(const Submission& submission, const driver::Api& api, const Piece& piece, const std::byte* host,
                       CUstream stream) const {
        if (!shaped) {
            return driver::call(submission, api.cuMemcpyHtoDAsync_v2, address + piece.offset,
                                static_cast<const void*>(host), piece.bytes, stream);
        }
        const CopyShape part = part_from_host(shape, piece, host);
        return driver::call(submission, api.cuMemcpy3DAsync_v2, &part, stream);
    }
    CUresult from_device(const Submission& submission, const driver::Api& api, const Piece& piece, std::byte* host,
                         CUstream stream) const {
        if (!shaped) {
            return driver::call(submission, api.cuMemcpyDtoHAsync_v2, static_cast<void*>(host), address + piece.offset,
                                piece.bytes, stream);
        }
        const CopyShape part = part_to_host(shape, piece, host);
        return driver::call(submission, api.cuMemcpy3DAsync_v2, &part, stream);
    }
};

// How a copy's data travels.
struct Way {
    std::uint64_t transfer = 0;
    std::uint64_t ahead_bytes = 0;  // sent without being asked for
};

// Has the client end the transfer: threads that wait for its memory go on, and a later call reports the error.
void transfer_failed(SessionView& session, std::uint64_t transfer) {
    session.answers.notify(codec::NoticeType::transfer_failed, codec::TransferFailedNotice{transfer});
}

class Copy : public Entry {
  public:
    Copy(CopyView& session, Command command, StreamState& stream, DeviceSide side, std::uint64_t bytes, Way way)
        : session_(session),
          command_(std::move(command)),
          stream_(stream),
          side_(std::move(side)),
          pieces_(side_.pieces(bytes)),
          transfer_(way.transfer) {
        command_.keep_header(kQueuedCopyCostBytes);
        Entry::bytes = kQueuedCopyCostBytes;
        kind = calls::Kind::work;
    }
    [[nodiscard]] std::string_view what() const override { return calls::name_of(command_.header.opcode); }
    void abandon(CUresult result) override {
        transfer_failed(session_, transfer_);
        if (command_.reply_wanted()) {
            session_.answers.give(command_, result);
        }
    }

  protected:
    void note(CUresult result) { keep_first_error(result_, result); }

    CopyView& session_;
    Command command_;
    StreamState& stream_;
    const DeviceSide side_;
    PieceCutter pieces_;
    const std::uint64_t transfer_;
    CUresult result_ = CUDA_SUCCESS;
};

// Pulls the data from the client piece by piece, except what is sent ahead, and gives each piece to the driver when it
// has landed.
class CopyIn final : public Copy {
  public:
    CopyIn(CopyView& session, Command command, StreamState& stream, DeviceSide side, std::uint64_t bytes, Way way)
        : Copy(session, std::move(command), stream, std::move(side), bytes, way), ahead_bytes_(way.ahead_bytes) {}
    ~CopyIn() override {
        if (!abandoned_) {
            session_.incoming.forget(transfer_);
        }
    }
    void abandon(CUresult result) override {
        // Data that was asked for may still arrive: the client may have sent it before it hears of this.
        session_.incoming.abandon(transfer_, [&staging = session_.staging](std::byte* chunk) { staging.put(chunk); });
        abandoned_ = true;
        Copy::abandon(result);
    }

    Reason advance() override {
        session_.scheduler.enter(stream_.context);
        while (std::optional<Incoming::Piece> landed = session_.incoming.take_landed(transfer_)) {
            issue(*landed);
        }
        const bool failed = result_ != CUDA_SUCCESS;  // then no further piece is pulled
        while (in_flight_ < kPiecesInFlight && !pieces_.done() && !failed) {
            if (!session_.traffic.may_go(HostTraffic::Way::in)) {
                return Reason::bandwidth;
            }
            const std::span<std::byte> chunk = session_.staging.take(stream_.staging, pieces_.left_bytes());
            if (chunk.empty()) {
                break;
            }
            const std::uint64_t at = pieces_.offset();
            const Piece piece = pieces_.next(
                at < ahead_bytes_ ? std::min<std::uint64_t>(chunk.size(), ahead_bytes_ - at) : chunk.size());
            asked_.push_back(piece);
            ++in_flight_;
            session_.traffic.count(HostTraffic::Way::in, piece.bytes);
            session_.incoming.expect(transfer_, piece.offset, piece.bytes, chunk.data());
            if (piece.offset >= ahead_bytes_) {
                session_.answers.notify(codec::NoticeType::pull,
                                        codec::PullNotice{transfer_, piece.offset, piece.bytes});
            }
        }
        if ((!pieces_.done() && !failed) || in_flight_ != 0) {
            return Reason::data;
        }
        if (failed) {
            transfer_failed(session_, transfer_);
        }
        submission->end();
        session_.answers.give(command_, result_);
        return Reason::none;
    }

  private:
    void issue(const Incoming::Piece& landed) {
        const Piece piece = asked_.front();
        asked_.pop_front();
        --in_flight_;
        if (ahead_bytes_ != 0 && piece.offset + piece.bytes == ahead_bytes_) {
            session_.answers.notify(codec::NoticeType::ahead_taken, codec::AheadTakenNotice{transfer_});
        }
        const Tracer::Issue issuing(session_.tracer, command_.header, waited_for());
        Tracer::Work work(session_.tracer, stream_, codec::TraceKind::copy_in, piece.bytes);
        const CUresult result = side_.to_device(*submission, session_.api, piece, landed.place, stream_.driver);
        work.end(result);
        note(result);
        session_.scheduler.mark(stream_,
                                [&staging = session_.staging, chunk = landed.place](CUresult) { staging.put(chunk); });
    }

    const std::uint64_t ahead_bytes_;
    std::deque<Piece> asked_;  // pulled or sent ahead, not landed
    std::size_t in_flight_ = 0;
    bool abandoned_ = false;
};

// Has the driver copy into staging memory piece by piece, and sends each piece when the mark behind it is reached.
class CopyOut final : public Copy {
  public:
    using Copy::Copy;

    Reason advance() override {
        session_.scheduler.enter(stream_.context);
        while (!pieces_.done() && result_ == CUDA_SUCCESS) {
            if (flight_->chunks.load(std::memory_order_relaxed) >= kPiecesInFlight) {
                return Reason::data;
            }
            if (!session_.traffic.may_go(HostTraffic::Way::out)) {
                return Reason::bandwidth;
            }
            const std::span<std::byte> room = session_.staging.take(stream_.staging, pieces_.left_bytes());
            if (room.empty()) {
                return Reason::data;
            }
            std::byte* const chunk = room.data();
            const Piece piece = pieces_.next(room.size());
            const Tracer::Issue issuing(session_.tracer, command_.header, waited_for());
            Tracer::Work work(session_.tracer, stream_, codec::TraceKind::copy_out, piece.bytes);
            session_.traffic.count(HostTraffic::Way::out, piece.bytes);
            const CUresult result = side_.from_device(*submission, session_.api, piece, chunk, stream_.driver);
            work.end(result);
            note(result);
            if (result_ != CUDA_SUCCESS) {
                session_.staging.put(chunk);  // the driver did not fill it
                submission->end();
                give_up(session_, transfer_, *flight_);
                break;
            }
            flight_->chunks.fetch_add(1, std::memory_order_relaxed);
            if (pieces_.done()) {
                submission->end();  // before the mark, which then covers the whole copy
            }
            note(session_.scheduler.mark(
                stream_,
                [&session = session_, transfer = transfer_, piece, chunk, flight = flight_](CUresult result) {
                    send(session, transfer, piece, chunk, result, flight);
                },
                0, Effect::sends_data));
        }
        if (!command_.reply_wanted()) {
            if (result_ != CUDA_SUCCESS) {
                session_.answers.give(command_, result_);
            }
            return Reason::none;
        }
        // The reply says that the data has arrived, so it follows the last piece, which was just marked.
        session_.scheduler.at_mark(stream_,
                                   [&session = session_, command = command_, issued = result_](CUresult result) {
                                       session.answers.give(command, issued != CUDA_SUCCESS ? issued : result, true);
                                   });
        return Reason::none;
    }

  private:
    // State that outlives the entry, which ends when all pieces are issued.
    struct Flight {
        std::atomic<std::size_t> chunks{0};  // not returned yet
        bool given_up = false;               // used by the dispatcher only
    };

    // After this notice nothing of the transfer may be sent any more, not even pieces that are complete.
    static void give_up(CopyView& session, std::uint64_t transfer, Flight& flight) {
        if (!flight.given_up) {
            flight.given_up = true;
            transfer_failed(session, transfer);
        }
    }
    static void send(CopyView& session, std::uint64_t transfer, const Piece& piece, std::byte* chunk, CUresult result,
                     const std::shared_ptr<Flight>& flight) {
        auto put_back = [&staging = session.staging, chunk, flight] {
            flight->chunks.fetch_sub(1, std::memory_order_relaxed);
            staging.put(chunk);  // which wakes the dispatcher
        };
        if (result != CUDA_SUCCESS) {
            give_up(session, transfer, *flight);
        }
        if (flight->given_up) {
            put_back();
            return;
        }
        session.answers.send_bulk(transfer, piece.offset, {chunk, piece.bytes}, std::move(put_back));
    }

    const std::shared_ptr<Flight> flight_ = std::make_shared<Flight>();
};

// Answers when the GPU has reached its place in the stream.
class CatchUp final : public EntryOfCommand<SessionView> {
  public:
    CatchUp(SessionView& session, Command command, StreamState& stream)
        : EntryOfCommand(session, std::move(command)), stream_(stream) {
        command_.keep_header(kQueuedCostBytes);
    }

    Reason advance() override {
        if (!std::exchange(marked_, true)) {
            session_.scheduler.mark(stream_, [&session = session_, there = there_](CUresult result) {
                if (result == CUDA_SUCCESS) {
                    session.answers.send_host_changes();  // before the client reads that memory for its next copy
                }
                *there = result;
            });
        }
        if (there_->has_value()) {
            session_.answers.give(command_, **there_);
        }
        return there_->has_value() ? Reason::none : Reason::order;
    }

  private:
    StreamState& stream_;
    bool marked_ = false;
    const std::shared_ptr<std::optional<CUresult>> there_ = std::make_shared<std::optional<CUresult>>();
};

template <class Direction>
Outcome begin(CopyView& session, Command& command, CUstream handle, DeviceSide side, std::uint64_t bytes, Way way) {
    constexpr bool kIn = std::is_same_v<Direction, CopyIn>;
    if ((way.transfer & codec::kTransferOfWorker) != 0) {
        return CUDA_ERROR_INVALID_VALUE;  // reserved for graphs
    }
    if (kIn && !session.incoming.begin(way.transfer, way.ahead_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, handle, result);
    if (stream != nullptr && stream->capturing) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the client uses gpCaptureCopy for these
    }
    if (result != CUDA_SUCCESS) {
        if (kIn) {
            session.incoming.forget(way.transfer);
        }
        transfer_failed(session, way.transfer);
        return result;
    }
    auto copy = std::make_unique<Direction>(session, command, *stream, std::move(side), bytes, way);
    if (kIn) {  // its data has yet to come
        session.gate.queue(*stream, std::move(copy));
    } else {
        session.gate.put(*stream, std::move(copy));
    }
    return Outcome::answered();
}

// Data that travelled in the command. It goes through pinned memory as well: the driver takes some pageable data
// without blocking, but not any amount while the stream is busy (measured), and the dispatcher must never block.
class CopyInline final : public EntryOfCommand<CopyView> {
  public:
    CopyInline(CopyView& session, Command command, StreamState& stream, DeviceSide side,
               std::span<const unsigned char> data)
        : EntryOfCommand(session, std::move(command)),
          stream_(stream),
          side_(std::move(side)),
          pieces_(side_.pieces(data.size())),
          data_(data) {
        kind = calls::Kind::work;
    }

    Reason advance() override {
        if (CUresult result = session_.scheduler.enter(stream_.context); result != CUDA_SUCCESS) {
            session_.answers.give(command_, result);
            return Reason::none;
        }
        CUresult result = CUDA_SUCCESS;
        while (!pieces_.done() && result == CUDA_SUCCESS) {  // usually a single piece
            if (!session_.traffic.may_go(HostTraffic::Way::in)) {
                return Reason::bandwidth;
            }
            const std::span<std::byte> chunk = session_.staging.take(stream_.staging, pieces_.left_bytes());
            if (chunk.empty()) {
                return Reason::data;
            }
            const Piece piece = pieces_.next(chunk.size());
            std::memcpy(chunk.data(), data_.data() + piece.offset, piece.bytes);
            const Tracer::Issue issuing(session_.tracer, command_.header, waited_for());
            Tracer::Work work(session_.tracer, stream_, codec::TraceKind::copy_in, piece.bytes);
            session_.traffic.count(HostTraffic::Way::in, piece.bytes);
            result = side_.to_device(*submission, session_.api, piece, chunk.data(), stream_.driver);
            work.end(result);
            if (pieces_.done()) {
                submission->end();  // before the mark, which then covers the whole copy
            }
            session_.scheduler.mark(
                stream_, [&staging = session_.staging, chunk = chunk.data()](CUresult) { staging.put(chunk); });
        }
        submission->end();
        session_.answers.give(command_, result);
        return Reason::none;
    }
    // The copy has to be queued: copies the data out of the frame, which can then be freed.
    void keep() {
        bytes += data_.size();
        kept_.assign(data_.begin(), data_.end());
        data_ = kept_;
        command_.keep_header(bytes);
    }

  private:
    StreamState& stream_;
    const DeviceSide side_;
    PieceCutter pieces_;
    std::span<const unsigned char> data_;  // in the frame, until keep()
    std::vector<unsigned char> kept_;
};

// A copy of `bytes` bytes, which the command itself must contain.
template <class Call>
Outcome copy_inline(CopyView& session, Command& command, codec::Slots<Call>& slots, const DeviceSide& side,
                    std::uint64_t bytes) {
    const std::span<const unsigned char> data = slots.template at<Call::data>().object;
    if (data.size() != bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.template at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (stream->capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (data.empty() || data.size() > codec::kMaxInlineBytes) {
        return data.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    CopyInline copy(session, command, *stream, side, data);
    // The usual case: it may go, and there is room.
    copy.submission = session.gate.enter(*stream, copy.kind);
    if (copy.submission && copy.advance() == Reason::none) {
        return Outcome::answered();
    }
    auto queued = std::make_unique<CopyInline>(std::move(copy));
    queued->keep();
    session.gate.queue(*stream, std::move(queued));
    return Outcome::answered();
}

CUresult shaped_side(SessionView& session, const CopyShape* shape, DeviceSide& side, std::uint64_t& bytes) {
    if (shape == nullptr || !packed_bytes(*shape, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side.shaped = true;
    side.shape = *shape;
    CUresult result = CUDA_SUCCESS;
    codec::StructTraits<CUDA_MEMCPY3D>::visit(side.shape, [&](CUarray& array) {
        const HandleTable::Lookup found = session.handles.find(array);
        if (found.found != HandleTable::Found::yes) {
            result = CUDA_ERROR_INVALID_HANDLE;
        }
        array = codec::from_wire<CUarray>(found.driver);
    });
    return result;
}

// The same for a copy with a transfer, which ends if this fails.
CUresult shaped_side(SessionView& session, const CopyShape* shape, std::uint64_t transfer, DeviceSide& side,
                     std::uint64_t& bytes) {
    const CUresult result = shaped_side(session, shape, side, bytes);
    if (result != CUDA_SUCCESS) {
        transfer_failed(session, transfer);
    }
    return result;
}

}  // namespace

Outcome gpStreamCatchUp(SessionView& session, Command& command, codec::Slots<calls::gpStreamCatchUp>& slots) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<calls::gpStreamCatchUp::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (stream->capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    session.gate.queue(*stream, std::make_unique<CatchUp>(session, command, *stream));
    return Outcome::answered();
}

Outcome gpCopyToDevice(CopyView& session, Command& command, codec::Slots<calls::gpCopyToDevice>& slots) {
    using Call = calls::gpCopyToDevice;
    const std::uint64_t bytes = slots.at<Call::bytes>().value;
    DeviceSide side;
    side.address = slots.at<Call::destination>().value;
    const Way way{slots.at<Call::transfer>().value, slots.at<Call::ahead_bytes>().value};
    if (way.transfer == 0) {
        return copy_inline(session, command, slots, side, bytes);
    }
    if (way.ahead_bytes > bytes || (way.ahead_bytes != bytes && way.ahead_bytes % codec::kAheadPieceBytes != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return begin<CopyIn>(session, command, slots.at<Call::stream>().value, side, bytes, way);
}

Outcome gpCopyFromDevice(CopyView& session, Command& command, codec::Slots<calls::gpCopyFromDevice>& slots) {
    using Call = calls::gpCopyFromDevice;
    DeviceSide side;
    side.address = slots.at<Call::source>().value;
    return begin<CopyOut>(session, command, slots.at<Call::stream>().value, side, slots.at<Call::bytes>().value,
                          Way{slots.at<Call::transfer>().value});
}

Outcome gpCopyShapedToDevice(CopyView& session, Command& command, codec::Slots<calls::gpCopyShapedToDevice>& slots) {
    using Call = calls::gpCopyShapedToDevice;
    DeviceSide side;
    std::uint64_t bytes = 0;
    const std::uint64_t transfer = slots.at<Call::transfer>().value;
    if (const CUresult result = shaped_side(session, slots.at<Call::shape>().value, transfer, side, bytes);
        result != CUDA_SUCCESS) {
        return result;
    }
    if (transfer == 0) {
        return copy_inline(session, command, slots, side, bytes);
    }
    return begin<CopyIn>(session, command, slots.at<Call::stream>().value, side, bytes, Way{transfer});
}

Outcome gpCopyShapedFromDevice(CopyView& session, Command& command,
                               codec::Slots<calls::gpCopyShapedFromDevice>& slots) {
    using Call = calls::gpCopyShapedFromDevice;
    DeviceSide side;
    std::uint64_t bytes = 0;
    const std::uint64_t transfer = slots.at<Call::transfer>().value;
    if (const CUresult result = shaped_side(session, slots.at<Call::shape>().value, transfer, side, bytes);
        result != CUDA_SUCCESS) {
        return result;
    }
    return begin<CopyOut>(session, command, slots.at<Call::stream>().value, side, bytes, Way{transfer});
}

Outcome gpCopyShapedOnDevice(SessionView& session, Command& command, codec::Slots<calls::gpCopyShapedOnDevice>& slots) {
    using Call = calls::gpCopyShapedOnDevice;
    CUresult result = CUDA_SUCCESS;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.at<Call::stream>().value, submission); !submission) {
        return outcome;
    }
    StreamState& stream = submission->stream();
    DeviceSide side;
    std::uint64_t bytes = 0;
    if (result = shaped_side(session, slots.at<Call::shape>().value, side, bytes); result != CUDA_SUCCESS) {
        return result;
    }
    if (side.shape.srcMemoryType == CU_MEMORYTYPE_HOST || side.shape.dstMemoryType == CU_MEMORYTYPE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;  // the client's host memory is not in this process
    }
    session.scheduler.enter(stream.context);
    Tracer::Work work(session.tracer, stream, codec::TraceKind::copy, bytes);
    result = driver::call(*submission, session.api.cuMemcpy3DAsync_v2, static_cast<const CUDA_MEMCPY3D*>(&side.shape),
                          stream.driver);
    work.end(result);
    return result;
}

}  // namespace gpupool::worker::handlers
