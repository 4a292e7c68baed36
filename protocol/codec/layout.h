// The wire layout of each call's parameters and of each notice, as text. A golden file pins it; client and server
// compare hashes of its lines (agreement.h).
//
// The text of a struct of gpupool's contains its members. A struct of cuda.h has only its size: NVIDIA gives a struct
// with another layout another name, in every version of CUDA.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/calls/members.h"
#include "protocol/codec/record.h"

namespace gpupool::codec {

// "opcode name shape:bytes{members} ..." of a call, or "notice:number name bytes{members} ..." of a notice.
struct LayoutLine {
    bool is_notice = false;
    bool travels = true;  // false: a call that is never sent
    std::uint16_t number = 0;
    std::uint16_t behaviour = 1;
    std::string text;

    // Of `text`: the same in every build.
    [[nodiscard]] std::uint32_t hash() const noexcept;
};

// The calls in opcode order, then the notices by number.
std::vector<LayoutLine> layout_lines();

// "{name@offset:type ...}". A type is the letter of its Member::Kind and its size in bytes, or again "{...}"; an array
// has "[elements]" behind its type.
std::string members_text(std::span<const Member> members);

// Empty for a number without a notice.
std::string_view notice_name(NoticeType type) noexcept;

}  // namespace gpupool::codec
