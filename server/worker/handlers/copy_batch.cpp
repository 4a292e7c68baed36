// Copies within the memory of GPUs: many in one command, and between contexts.

#include <cstddef>
#include <cstring>

#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/transfers/copy_pieces.h"
#include "server/worker/transfers/host_traffic.h"

namespace gpupool::worker::handlers {
namespace {

// The direction of a copy from or to memory that the client shares; none for other copies, and from shared memory to
// shared memory.
std::optional<HostTraffic::Way> way_of(const CopyView& session, const CopyRange& copy) {
    if (!session.host_mirrors.any_shared()) [[likely]] {
        return std::nullopt;
    }
    const bool from_host = session.host_mirrors.is_shared(copy.source);
    const bool to_host = session.host_mirrors.is_shared(copy.destination);
    if (from_host == to_host) {
        return std::nullopt;
    }
    return from_host ? HostTraffic::Way::in : HostTraffic::Way::out;
}

// Gives the copies to the driver one by one, as the stream has credit. The driver's own call for batches is not used:
// unlike cuMemcpyDtoDAsync it would also copy from and to the session's own memory, if a client named an address there.
class CopyBatch final : public EntryOfCommand<CopyView> {
  public:
    CopyBatch(CopyView& session, Command command, StreamState& stream, std::vector<CopyRange> copies)
        : EntryOfCommand(session, std::move(command)), stream_(stream), copies_(std::move(copies)) {
        kind = calls::Kind::work;
        bytes = kQueuedCostBytes + copies_.size() * sizeof(CopyRange);
        command_.keep_header(bytes);
    }

    Reason advance() override {
        CUresult result = session_.scheduler.enter(stream_.context);
        while (next_ < copies_.size() && result == CUDA_SUCCESS) {
            if (!session_.scheduler.has_room(stream_)) {
                return Reason::credit;
            }
            const CopyRange& copy = copies_[next_];
            if (const auto way = way_of(session_, copy)) {
                if (!session_.traffic.may_go(*way)) {
                    return Reason::bandwidth;
                }
                session_.traffic.count(*way, copy.bytes);
            }
            ++next_;
            const Tracer::Issue issuing(session_.tracer, command_.header, waited_for());
            Tracer::Work work(session_.tracer, stream_, codec::TraceKind::copy, copy.bytes);
            result = driver::call(*submission, session_.api.cuMemcpyDtoDAsync_v2, copy.destination, copy.source,
                                  copy.bytes, stream_.driver);
            work.end(result);
            submission->count();
        }
        submission->cancel();  // each copy is accounted for
        session_.answers.give(command_, result);
        return Reason::none;
    }

  private:
    StreamState& stream_;
    const std::vector<CopyRange> copies_;
    std::size_t next_ = 0;
};

}  // namespace

Outcome cuMemcpyDtoDAsync_v2(CopyView& session, Command& command, codec::Slots<calls::cuMemcpyDtoDAsync_v2>& slots) {
    using Call = calls::cuMemcpyDtoDAsync_v2;
    const CopyRange copy{slots.at<Call::dstDevice>().value, slots.at<Call::srcDevice>().value,
                         slots.at<Call::ByteCount>().value};
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = session.stream_of(command, slots.at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    const auto way = stream->capturing ? std::nullopt : way_of(session, copy);
    if (way && session.traffic.limited()) {
        session.gate.put(*stream, std::make_unique<CopyBatch>(session, command, *stream, std::vector{copy}));
        return Outcome::answered();
    }
    std::optional<Submission> submission = enter<Call>(session, command, *stream);
    if (!submission) {
        return Outcome::answered();
    }
    if (way) {
        session.traffic.count(*way, copy.bytes);
    }
    if (result = session.scheduler.enter(stream->context); result != CUDA_SUCCESS) {
        return result;
    }
    Tracer::Work work(session.tracer, *stream, codec::TraceKind::copy, copy.bytes);
    result = driver::call(*submission, session.api.cuMemcpyDtoDAsync_v2, copy.destination, copy.source, copy.bytes,
                          stream->driver);
    work.end(result);
    return result;
}

Outcome gpCopyBatch(CopyView& session, Command& command, codec::Slots<calls::gpCopyBatch>& slots) {
    using Call = calls::gpCopyBatch;
    std::vector<CopyRange>& copies = slots.at<Call::copies>().object;
    if (copies.size() > codec::kMaxBatchedCopies) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (stream->capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    session.gate.put(*stream, std::make_unique<CopyBatch>(session, command, *stream, std::move(copies)));
    return Outcome::answered();
}

Outcome gpCopyPeer(SessionView& session, Command& command, codec::Slots<calls::gpCopyPeer>& slots) {
    using Call = calls::gpCopyPeer;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.at<Call::stream>().value, submission); !submission) {
        return outcome;
    }
    StreamState& stream = submission->stream();
    std::uint64_t bytes = 0;
    const CopyShape* const given = slots.at<Call::shape>().value;
    if (given == nullptr || !packed_bytes(*given, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto on_device = [](const CUmemorytype& type) {
        const int number = codec::number_of(type);
        return number == CU_MEMORYTYPE_DEVICE || number == CU_MEMORYTYPE_ARRAY;
    };
    if (!on_device(given->srcMemoryType) || !on_device(given->dstMemoryType)) {
        return CUDA_ERROR_INVALID_VALUE;  // the client's host memory is not in this process
    }
    CopyShape shape = *given;
    CUresult result = CUDA_SUCCESS;
    codec::StructTraits<CopyShape>::visit(
        shape, [&](CUarray& array) { keep_first_error(result, driver_handle(session, array)); });
    // The context of an array is ignored.
    const auto context_of = [&](CUcontext client) {
        const ContextState* const context = session.objects.context(client);
        return context == nullptr ? nullptr : context->driver;
    };
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUDA_MEMCPY3D_PEER peer{};
    static_assert(sizeof peer == sizeof shape &&
                  offsetof(CUDA_MEMCPY3D_PEER, srcContext) == offsetof(CopyShape, reserved0) &&
                  offsetof(CUDA_MEMCPY3D_PEER, dstContext) == offsetof(CopyShape, reserved1));
    std::memcpy(&peer, &shape, sizeof peer);
    peer.srcContext = context_of(slots.at<Call::srcContext>().value);
    peer.dstContext = context_of(slots.at<Call::dstContext>().value);
    session.scheduler.enter(stream.context);
    Tracer::Work work(session.tracer, stream, codec::TraceKind::copy, bytes);
    result = driver::call(*submission, session.api.cuMemcpy3DPeerAsync, static_cast<const CUDA_MEMCPY3D_PEER*>(&peer),
                          stream.driver);
    work.end(result);
    return result;
}

}  // namespace gpupool::worker::handlers
