// How each call's parameters, and each notice, lie on the wire, as text: what the golden file pins, and of whose lines
// client and server compare hashes (agreement.h).
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/codec/record.h"

namespace gpupool::codec {

// "opcode name shape:bytes ..." of a call, or "notice:number name bytes ..." of a notice.
struct LayoutLine {
    bool is_notice = false;
    bool travels = true;  // false: a call that never does
    std::uint16_t number = 0;
    std::uint16_t behaviour = 1;
    std::string text;
};

// The calls in opcode order, then the notices by number.
std::vector<LayoutLine> layout_lines();

// The same as text, a behaviour other than 1 with it; then a line per record header: "record:name offset:bytes ...",
// which belong to the protocol version (session.capnp).
std::vector<std::string> wire_layout();

// Empty where there is none.
std::string_view notice_name(NoticeType type) noexcept;

}  // namespace gpupool::codec
