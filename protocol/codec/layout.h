// The wire layout of each call's parameters and of each notice, as text. A golden file pins it; client and server
// compare hashes of its lines (agreement.h).
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
    bool travels = true;  // false: a call that is never sent
    std::uint16_t number = 0;
    std::uint16_t behaviour = 1;
    std::string text;
};

// The calls in opcode order, then the notices by number.
std::vector<LayoutLine> layout_lines();

// The same as text, with the behaviour if it is not 1; then a line per record header: "record:name offset:bytes ...".
// The headers belong to the protocol version (session.capnp).
std::vector<std::string> wire_layout();

// Empty for a number without a notice.
std::string_view notice_name(NoticeType type) noexcept;

}  // namespace gpupool::codec
