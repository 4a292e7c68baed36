#include "protocol/codec/layout.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
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

// "bytes", and the members if T is a struct of gpupool's.
template <class T>
std::string layout_of() {
    std::string text = std::to_string(sizeof(T));
    if constexpr (HasMembers<T>) {
        text += members_text(kMembers<T>);
    }
    return text;
}

template <class... Part>
std::string layouts_of() {
    std::string text;
    ((text += ' ' + layout_of<Part>()), ...);
    return text;
}

template <class Call, int Index>
void describe(std::string& line) {
    using T = calls::ArgumentOf<Call, Index>;
    constexpr Shape kShape = shape<Call, Index>;
    line += ' ';
    line += shape_name(kShape);
    if constexpr (kShape == Shape::value) {
        line += ':' + layout_of<T>();
    } else if constexpr (kShape != Shape::absent && kShape != Shape::address) {
        line += ':' + layout_of<PointeeOf<T>>();
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
    if constexpr (std::is_same_v<Call, calls::gpHostWrite>) {
        line += " data:" + layout_of<ChangeHeader>();  // its array of bytes begins with it
    }
    return line;
}

template <class Call>
LayoutLine layout_line() {
    return {false, calls::is_remote<Call>, Call::kOpcode, calls::behaviour_of<Call>, line_of<Call>(Indices<Call>{})};
}

// The parts of a notice that have a fixed layout.
std::string parts_of(NoticeType type) {
    using TextBytes = std::uint64_t;
    switch (type) {
        case NoticeType::pull: return layouts_of<PullNotice>();
        case NoticeType::host_function: return layouts_of<HostFunctionNotice>();
        case NoticeType::deferred_error: return layouts_of<DeferredErrorNotice>();
        case NoticeType::throttle: return layouts_of<StreamThrottleNotice>();
        case NoticeType::output: return layouts_of<TextBytes>();
        case NoticeType::transfer_failed: return layouts_of<TransferFailedNotice>();
        case NoticeType::graph_function: return layouts_of<GraphFunctionNotice>();
        case NoticeType::graph_upload: return layouts_of<GraphCopyNotice>();
        case NoticeType::graph_download: return layouts_of<GraphCopyNotice>();
        case NoticeType::errors: return layouts_of<TextBytes>();
        case NoticeType::host_memory: return layouts_of<ChangeHeader>();
        case NoticeType::event_complete: return layouts_of<EventCompleteNotice>();
        case NoticeType::pieces_sent: return layouts_of<PiecesSentNotice>();
        case NoticeType::ahead_taken: return layouts_of<AheadTakenNotice>();
        case NoticeType::slab_prepared: return layouts_of<SlabPreparedNotice>();
        case NoticeType::stream_complete: return layouts_of<StreamCompleteNotice>();
        case NoticeType::ended: return layouts_of<TextBytes>();
        case NoticeType::trace_records: return layouts_of<TraceHeader, TraceRecord>();
        case NoticeType::trace_name: return layouts_of<TraceName>();
    }
    return {};
}

}  // namespace

std::string_view notice_name(NoticeType type) noexcept {
    switch (type) {
        case NoticeType::pull: return "pull";
        case NoticeType::host_function: return "host_function";
        case NoticeType::deferred_error: return "deferred_error";
        case NoticeType::throttle: return "throttle";
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
            lines.push_back({true, true, number, behaviour_of(type),
                             "notice:" + std::to_string(number) + ' ' + std::string(name) + parts_of(type)});
        }
    }
    return lines;
}

std::string members_text(std::span<const Member> members) {
    std::string text = "{";
    for (const Member& member : members) {
        text += member.name;
        text += '@' + std::to_string(member.offset) + ':';
        if (member.kind == Member::Kind::own_struct) {
            text += members_text(member.members);
        } else {
            text += static_cast<char>(member.kind);
            text += std::to_string(member.element_bytes);
        }
        if (member.elements != 1) {
            text += '[' + std::to_string(member.elements) + ']';
        }
        text += ' ';
    }
    text.back() = '}';
    return text;
}

std::uint32_t LayoutLine::hash() const noexcept {
    // FNV-1a: the value only has to differ when the text does.
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

}  // namespace gpupool::codec
