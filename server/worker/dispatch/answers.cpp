// Replies and notices to the client, latched errors of deferred calls, and the data that must precede a reply or
// notice.

#include "server/worker/dispatch/answers.h"

#include <cstring>
#include <utility>

#include "common/log.h"
#include "protocol/calls/table.h"
#include "protocol/codec/cursor.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/scheduling/scheduler.h"

namespace gpupool::worker {
namespace {

constexpr std::size_t kLeastSentByItselfBytes = 32u << 10;

}  // namespace

// A deferred call failed: the next call that synchronizes with its stream, or with its context, reports it.
void Answers::latch(const Command& command, CUresult result) {
    if (StreamState* const stream = command.stream ? objects_.stream(*command.stream) : nullptr) {
        stream->latch(result);
    } else if (ContextState* const context = context_of(command); context != nullptr) {
        keep_first_error(context->latched, result);
    }
}

ContextState* Answers::concerned_context(const Command& command) {
    const CUcontext named = command.stream ? command.stream->context : command.waits_for;
    return named != nullptr ? objects_.context(named) : context_of(command);
}

// Takes the first latched error of what `command` has synchronized with: a stream and those it waits for, or a whole
// context.
CUresult Answers::take_latched(const Command& command) {
    StreamState* const stream = command.stream ? objects_.stream(*command.stream) : nullptr;
    ContextState* const context = concerned_context(command);
    if (context == nullptr) {
        return CUDA_SUCCESS;
    }
    CUresult result = std::exchange(context->latched, CUDA_SUCCESS);
    if (stream == nullptr || stream->legacy) {  // for the client, the legacy stream stands for all
        keep_first_error(result, std::exchange(context->latched_by_ended, CUDA_SUCCESS));
    }
    const bool stream_is_gone = command.stream && stream == nullptr;
    if (context->streams_latched == 0 || stream_is_gone) {
        return result;
    }
    if (stream == nullptr || stream->legacy) {
        context->each_stream([&](StreamState& other) {
            if (stream == nullptr || other.blocking) {
                keep_first_error(result, other.take_latched());
            }
        });
    } else {
        keep_first_error(result, stream->take_latched());
        if (stream->blocking) {
            keep_first_error(result, context->legacy.take_latched());
        }
    }
    return result;
}

namespace {

// Many calls that the driver makes wait for the GPU without being documented to synchronize. The program may then read
// what the GPU wrote to mapped memory.
bool may_have_waited(std::uint16_t opcode) {
    const calls::CallInfo* const call = calls::find(opcode);
    return call != nullptr && call->delivery == calls::Delivery::blocking;
}

}  // namespace

void Answers::give(const Command& command, CUresult result, bool synchronizes) {
    give(command, result, synchronizes, 0, [](std::byte*) {});
}

void Answers::give(const Command& command, CUresult result, bool synchronizes, std::size_t body_bytes,
                   const std::function<void(std::byte*)>& write) {
    const codec::CommandHeader& header = command.header;
    if (!command.reply_wanted()) {
        if (result != CUDA_SUCCESS) {
            latch(command, result);
            log::info("deferred call {} (command {}) failed with error {}", calls::name_of(header.opcode),
                      header.number, static_cast<int>(result));
            const ContextState* const concerned = concerned_context(command);
            const std::uint64_t context = concerned == nullptr ? header.context : codec::to_wire(concerned->client);
            notify(codec::NoticeType::deferred_error,
                   codec::DeferredErrorNotice{header.number, context, result, header.opcode, 0});
        }
        return;
    }
    announce_pieces();
    if (synchronizes) {
        send_what_precedes(result);
    } else if (!host_mirrors_.empty() && may_have_waited(header.opcode)) {
        send_host_changes();
    }
    codec::ReplyHeader reply{};
    reply.bytes = static_cast<std::uint32_t>(sizeof reply + codec::aligned(body_bytes));
    reply.opcode = header.opcode;
    reply.kind = codec::ReplyKind::result;
    reply.number = header.number;
    reply.result = result;
    // A call that has failed or is not complete reports no latched error.
    reply.deferred = synchronizes && result == CUDA_SUCCESS ? take_latched(command) : CUDA_SUCCESS;
    reply.thread = header.thread;
    const ContextState* const concerned =
        reply.result == CUDA_SUCCESS && reply.deferred == CUDA_SUCCESS ? nullptr : concerned_context(command);
    reply.other_context = concerned != nullptr && codec::to_wire(concerned->client) != header.context ? 1 : 0;
    const Status sent = channel_->append(
        wire::FrameType::replies, reply.bytes,
        [&](std::byte* place) {
            std::memcpy(place, &reply, sizeof reply);
            write(place + sizeof reply);
        },
        wire::Urgency::later);
    if (!sent) {
        end_.stop(sent.error().message);
    }
}

void Answers::send_what_precedes(CUresult result) {
    send_host_changes();
    const bool may_have_printed = scheduler_.kernels_print() || result != CUDA_SUCCESS;
    send_output(output_.kernels, codec::NoticeType::output, may_have_printed);
    send_output(output_.driver, codec::NoticeType::errors, may_have_printed);
}

void Answers::send_host_changes() {
    host_mirrors_.collect([this](auto record) { send_host_change(record); });
}

// Sends what kernels and the driver have printed. Reads the pipe if `thorough`; otherwise sends only the text that the
// output reader has read already.
void Answers::send_output(DeviceOutput* output, codec::NoticeType type, bool thorough) {
    if (output == nullptr || !(thorough || output->has_text())) {
        return;
    }
    constexpr std::size_t kPartBytes = 64u << 10;
    const std::string text = output->take();
    if (type == codec::NoticeType::errors && !text.empty()) {
        log::warn("the driver says: {}", text.substr(0, text.find('\n')));
    }
    for (std::size_t offset = 0; offset < text.size(); offset += kPartBytes) {
        notify_text(type, std::string_view(text).substr(offset, kPartBytes));
    }
}

void Answers::notify_text(codec::NoticeType type, std::string_view text) {
    const std::uint64_t size = text.size();
    std::string notice(reinterpret_cast<const char*>(&size), sizeof size);
    notice.append(text);
    notify_bytes(type, notice.data(), notice.size());
}

// Needed only if data was sent over lanes since the last call, because the session's own connection keeps its order.
// Not needed before notices that the client may act on at any time (may_mean_data()).
void Answers::announce_pieces() {
    if (const std::uint64_t sent = lanes_->sent_up_to(); sent != announced_pieces_) {
        announced_pieces_ = sent;
        notify(codec::NoticeType::pieces_sent, codec::PiecesSentNotice{sent});
    }
}

namespace {

// May the client conclude from the notice that data sent before has arrived? Then it must wait for that data first.
bool may_mean_data(codec::NoticeType type) {
    switch (type) {
        case codec::NoticeType::pull:
        case codec::NoticeType::throttle:
        case codec::NoticeType::pieces_sent:
        case codec::NoticeType::ahead_taken:
        case codec::NoticeType::slab_prepared: return false;
        default: return true;
    }
}

// Does the notice throttle the client? It would be too late behind bulk data that a slow line has yet to carry.
bool restrains(codec::NoticeType type) {
    return type == codec::NoticeType::throttle;
}

}  // namespace

void Answers::notify_bytes(codec::NoticeType type, const void* notice, std::size_t bytes) {
    notified_ = true;
    if (!agreement_.has(type)) {
        return;  // the client does not know it. It is not of the core set, so no thread waits for it.
    }
    if (may_mean_data(type)) {
        announce_pieces();
    }
    codec::ReplyHeader header{};
    header.bytes = static_cast<std::uint32_t>(sizeof header + codec::aligned(bytes));
    header.opcode = static_cast<std::uint16_t>(type);
    header.kind = codec::ReplyKind::notice;
    const Status sent = channel_->append(
        wire::FrameType::replies, header.bytes,
        [&](std::byte* place) {
            codec::Writer out(place);
            out.value(header);
            out.bytes(notice, bytes);
        },
        restrains(type) ? wire::Urgency::ahead_of_bulk : wire::Urgency::later);
    if (!sent) {
        end_.stop(sent.error().message);
    }
}

void Answers::send_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                        std::function<void()> done) {
    // A small amount of data is sent together with the reply that follows it.
    const auto urgency = data.size() < kLeastSentByItselfBytes ? wire::Urgency::later : wire::Urgency::soon;
    const bool in_order = (transfer & codec::kTransferInOrder) != 0;
    if (in_order) {
        announce_pieces();
    }
    const Status sent = !in_order && lanes_->take(data.size())
                            ? lanes_->send(transfer, offset, data, std::move(done))
                            : channel_->append_bulk(transfer, offset, data, std::move(done), urgency);
    if (!sent) {
        end_.stop(sent.error().message);
    }
}

void Answers::send_own(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                       std::function<void()> done) {
    if (const Status sent = channel_->append_bulk(transfer, offset, data, std::move(done)); !sent) {
        end_.stop(sent.error().message);
    }
}

void Answers::violation(const Command& command, const std::string& what) {
    end_.refuse(std::string("the client sent a bad command (") + std::string(calls::name_of(command.header.opcode)) +
                "): " + what);
}

}  // namespace gpupool::worker
