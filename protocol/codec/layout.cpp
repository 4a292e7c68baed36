#include "protocol/codec/layout.h"

#include <algorithm>
#include <cstdint>

#include "protocol/calls/table.h"
#include "protocol/codec/parameter.h"
#include "protocol/codec/record.h"

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
