#include "protocol/codec/layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "protocol/calls/table.h"
#include "protocol/codec/memory_changes.h"
#include "protocol/codec/parameter.h"
#include "protocol/codec/record.h"
#include "protocol/codec/trace_records.h"

namespace gpupool::codec {
namespace {

const char* shape_name(Shape shape) {
    switch (shape) {
        case Shape::value: return "value";
        case Shape::address: return "address";
        case Shape::absent: return "absent";
        case Shape::in: return "in";
        case Shape::out: return "out";
        case Shape::inout: return "inout";
        case Shape::in_array: return "in_array";
        case Shape::out_array: return "out_array";
        case Shape::text: return "text";
        case Shape::creates: return "creates";
    }
    return "?";
}

template <class Call, int Index>
void describe(std::string& line) {
    using T = calls::ArgumentOf<Call, Index>;
    constexpr Shape kShape = shape<Call, Index>;
    line += ' ';
    line += shape_name(kShape);
    if constexpr (kShape == Shape::value) {
        line += ':' + std::to_string(sizeof(T));
    } else if constexpr (kShape != Shape::absent && kShape != Shape::address) {
        line += ':' + std::to_string(sizeof(PointeeOf<T>));
    }
}

template <class Call, int... Index>
std::string line_of(std::integer_sequence<int, Index...>) {
    std::string line = std::to_string(Call::kOpcode) + ' ' + std::string(Call::kName);
    if constexpr (calls::is_remote<Call>) {
        (describe<Call, Index>(line), ...);
    } else {
        line += " -";
    }
    return line;
}

template <class Call>
LayoutLine layout_line() {
    return {false, calls::is_remote<Call>, Call::kOpcode, calls::behaviour_of<Call>, line_of<Call>(Indices<Call>{})};
}

// The sizes of the parts of a notice that have a fixed layout.
std::vector<std::size_t> sizes_of(NoticeType type) {
    switch (type) {
        case NoticeType::pull: return {sizeof(PullNotice)};
        case NoticeType::host_function: return {sizeof(HostFunctionNotice)};
        case NoticeType::deferred_error: return {sizeof(DeferredErrorNotice)};
        case NoticeType::hold: return {sizeof(StreamHoldNotice)};
        case NoticeType::output: return {sizeof(std::uint64_t)};
        case NoticeType::transfer_failed: return {sizeof(TransferFailedNotice)};
        case NoticeType::graph_function: return {sizeof(GraphFunctionNotice)};
        case NoticeType::graph_upload: return {sizeof(GraphCopyNotice)};
        case NoticeType::graph_download: return {sizeof(GraphCopyNotice)};
        case NoticeType::errors: return {sizeof(std::uint64_t)};
        case NoticeType::host_memory: return {sizeof(ChangeHeader), sizeof(SharedBlock)};
        case NoticeType::event_complete: return {sizeof(EventCompleteNotice)};
        case NoticeType::pieces_sent: return {sizeof(PiecesSentNotice)};
        case NoticeType::ahead_taken: return {sizeof(AheadTakenNotice)};
        case NoticeType::slab_prepared: return {sizeof(SlabPreparedNotice)};
        case NoticeType::stream_complete: return {sizeof(StreamCompleteNotice)};
        case NoticeType::ended: return {sizeof(std::uint64_t)};
        case NoticeType::trace_records: return {sizeof(TraceHeader), sizeof(TraceRecord)};
        case NoticeType::trace_name: return {sizeof(TraceName)};
    }
    return {};
}

template <class Member>
void describe_member(std::string& line, std::size_t offset, const Member&) {
    line += ' ' + std::to_string(offset) + ':' + std::to_string(sizeof(Member));
}

std::vector<std::string> record_lines() {
    std::string command = "record:command", reply = "record:reply";
#define GP_COMMAND(member) describe_member(command, offsetof(CommandHeader, member), CommandHeader{}.member)
    GP_COMMAND(bytes);
    GP_COMMAND(opcode);
    GP_COMMAND(flags);
    GP_COMMAND(number);
    GP_COMMAND(context);
    GP_COMMAND(thread);
    GP_COMMAND(reserved);
#undef GP_COMMAND
#define GP_REPLY(member) describe_member(reply, offsetof(ReplyHeader, member), ReplyHeader{}.member)
    GP_REPLY(bytes);
    GP_REPLY(opcode);
    GP_REPLY(kind);
    GP_REPLY(number);
    GP_REPLY(result);
    GP_REPLY(deferred);
    GP_REPLY(thread);
    GP_REPLY(other_context);
#undef GP_REPLY
    return {command, reply};
}

}  // namespace

std::string_view notice_name(NoticeType type) noexcept {
    switch (type) {
        case NoticeType::pull: return "pull";
        case NoticeType::host_function: return "host_function";
        case NoticeType::deferred_error: return "deferred_error";
        case NoticeType::hold: return "hold";
        case NoticeType::output: return "output";
        case NoticeType::transfer_failed: return "transfer_failed";
        case NoticeType::graph_function: return "graph_function";
        case NoticeType::graph_upload: return "graph_upload";
        case NoticeType::graph_download: return "graph_download";
        case NoticeType::errors: return "errors";
        case NoticeType::host_memory: return "host_memory";
        case NoticeType::event_complete: return "event_complete";
        case NoticeType::pieces_sent: return "pieces_sent";
        case NoticeType::ahead_taken: return "ahead_taken";
        case NoticeType::slab_prepared: return "slab_prepared";
        case NoticeType::stream_complete: return "stream_complete";
        case NoticeType::ended: return "ended";
        case NoticeType::trace_records: return "trace_records";
        case NoticeType::trace_name: return "trace_name";
    }
    return {};
}

std::vector<LayoutLine> layout_lines() {
    std::vector<LayoutLine> lines = {
#define GP_CALL(op, symbol, ...) layout_line<calls::symbol>(),
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    };
    std::sort(lines.begin(), lines.end(), [](const LayoutLine& a, const LayoutLine& b) { return a.number < b.number; });
    constexpr std::uint16_t kMaxNotices = 256;
    for (std::uint16_t number = 0; number < kMaxNotices; ++number) {
        const auto type = static_cast<NoticeType>(number);
        if (const std::string_view name = notice_name(type); !name.empty()) {
            std::string text = "notice:" + std::to_string(number) + ' ' + std::string(name);
            for (const std::size_t bytes : sizes_of(type)) {
                text += ' ' + std::to_string(bytes);
            }
            lines.push_back({true, true, number, behaviour_of(type), std::move(text)});
        }
    }
    return lines;
}

std::vector<std::string> wire_layout() {
    std::vector<std::string> lines;
    for (const LayoutLine& line : layout_lines()) {
        lines.push_back(line.behaviour == 1 ? line.text : line.text + " behaviour:" + std::to_string(line.behaviour));
    }
    for (std::string& line : record_lines()) {
        lines.push_back(std::move(line));
    }
    return lines;
}

}  // namespace gpupool::codec
