#include "protocol/codec/layout.h"

#include <algorithm>
#include <cstdint>

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

// The part of a notice that has a fixed layout.
std::string describe(NoticeType type) {
    const auto line = [](const char* name, std::size_t bytes) {
        return std::string(name) + ' ' + std::to_string(bytes);
    };
    switch (type) {
        case NoticeType::pull: return line("pull", sizeof(PullNotice));
        case NoticeType::host_function: return line("host_function", sizeof(HostFunctionNotice));
        case NoticeType::deferred_error: return line("deferred_error", sizeof(DeferredErrorNotice));
        case NoticeType::hold: return line("hold", sizeof(StreamHoldNotice));
        case NoticeType::output: return line("output", sizeof(std::uint64_t));
        case NoticeType::transfer_failed: return line("transfer_failed", sizeof(TransferFailedNotice));
        case NoticeType::graph_function: return line("graph_function", sizeof(GraphFunctionNotice));
        case NoticeType::graph_upload: return line("graph_upload", sizeof(GraphCopyNotice));
        case NoticeType::graph_download: return line("graph_download", sizeof(GraphCopyNotice));
        case NoticeType::errors: return line("errors", sizeof(std::uint64_t));
        case NoticeType::host_memory:
            return line("host_memory", sizeof(ChangeHeader)) + ' ' + std::to_string(sizeof(SharedBlock));
        case NoticeType::event_complete: return line("event_complete", sizeof(EventCompleteNotice));
        case NoticeType::pieces_sent: return line("pieces_sent", sizeof(PiecesSentNotice));
        case NoticeType::ahead_taken: return line("ahead_taken", sizeof(AheadTakenNotice));
        case NoticeType::slab_prepared: return line("slab_prepared", sizeof(SlabPreparedNotice));
        case NoticeType::stream_complete: return line("stream_complete", sizeof(StreamCompleteNotice));
        case NoticeType::ended: return line("ended", sizeof(std::uint64_t));
        case NoticeType::trace_records:
            return line("trace_records", sizeof(TraceHeader)) + ' ' + std::to_string(sizeof(TraceRecord));
        case NoticeType::trace_name: return line("trace_name", sizeof(TraceName));
    }
    return {};
}

}  // namespace

std::vector<std::string> wire_layout() {
    std::vector<std::string> lines = {
#define GP_CALL(op, symbol, ...) line_of<calls::symbol>(Indices<calls::symbol>{}),
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    };
    std::sort(lines.begin(), lines.end(),
              [](const std::string& a, const std::string& b) { return std::stoi(a) < std::stoi(b); });
    constexpr unsigned kMaxNotices = 256;
    for (unsigned number = 0; number < kMaxNotices; ++number) {
        if (const std::string notice = describe(static_cast<NoticeType>(number)); !notice.empty()) {
            lines.push_back("notice:" + std::to_string(number) + ' ' + notice);
        }
    }
    return lines;
}

std::uint64_t table_fingerprint() noexcept {
    // FNV-1a: the value only has to differ when the text does.
    static const std::uint64_t value = [] {
        std::uint64_t hash = 0xcbf29ce484222325u;
        const auto mix = [&](const std::string& text) {
            for (const char c : text) {
                hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
            }
        };
        for (const std::string& line : wire_layout()) {
            mix(line);
        }
        mix("records " + std::to_string(sizeof(CommandHeader)) + ' ' + std::to_string(sizeof(ReplyHeader)));
        return hash;
    }();
    return value;
}

}  // namespace gpupool::codec
