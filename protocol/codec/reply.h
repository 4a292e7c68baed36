// The encoding of a call's results: the worker's writer and the client's reader.
//
// Body of a reply record, for each parameter with output that the client asked for, in order:
//   out, inout  the object
//   out_array   8 bytes: elements; then the elements
// Only the header if the driver refused the call.
#pragma once

#include <cstring>

#include "protocol/codec/command.h"

namespace gpupool::codec {

// ---- worker

template <class Call, int Index>
std::size_t output_bytes(const Slot<Call, Index>& slot) {
    if constexpr (!has_output<Call, Index>) {
        return 0;
    } else if constexpr (shape<Call, Index> == Shape::out_array) {
        return slot.value == nullptr ? 0 : 8 + aligned((slot.object.size() - 1) * sizeof(slot.object[0]));
    } else {
        return slot.value == nullptr ? 0 : aligned(sizeof(slot.object));
    }
}

template <class Call, int Index>
void write_output(Writer& out, const Slot<Call, Index>& slot) {
    if constexpr (has_output<Call, Index>) {
        if (slot.value == nullptr) {
            return;
        }
        if constexpr (shape<Call, Index> == Shape::out_array) {
            const std::size_t count = slot.object.size() - 1;
            out.value(std::uint64_t{count});
            out.bytes(slot.object.data(), count * sizeof(slot.object[0]));
        } else {
            out.bytes(&slot.object, sizeof slot.object);
        }
    }
}

template <class Call>
std::size_t reply_bytes(Slots<Call>& slots) {
    std::size_t total = 0;
    slots.each([&](const auto& slot) { total += output_bytes(slot); });
    return total;
}
template <class Call>
void write_reply(Writer& out, Slots<Call>& slots) {
    slots.each([&](const auto& slot) { write_output(out, slot); });
}

// ---- client

template <class Call, int Index>
void read_output(Reader& in, Arguments arguments) {
    if constexpr (has_output<Call, Index>) {
        const auto pointer = argument<Call, Index>(arguments);
        using Pointee = PointeeOf<ArgumentOf<Call, Index>>;
        if (pointer == nullptr) {
            return;
        }
        if constexpr (shape<Call, Index> == Shape::out_array) {
            const std::uint64_t count = in.value<std::uint64_t>();
            if (count > kMaxArrayElements) {
                in.fail();
                return;
            }
            const std::byte* from = in.take(count * sizeof(Pointee));
            const std::size_t room = element_count<Call, Index>(arguments);
            if (from != nullptr && count != 0) {
                std::memcpy(static_cast<void*>(pointer), from, std::min<std::size_t>(count, room) * sizeof(Pointee));
            }
        } else if (const std::byte* from = in.take(sizeof(Pointee))) {
            std::memcpy(static_cast<void*>(pointer), from, sizeof(Pointee));
        }
    }
}

namespace detail {
template <class Call, int... Index>
bool read_reply(std::span<std::byte> body, Arguments arguments, std::integer_sequence<int, Index...>) {
    Reader in(body);
    (void)arguments;
    // In parameter order. The count of an array may itself be an output; it follows its array in every call, so that
    // the caller's count still bounds the array.
    (read_output<Call, Index>(in, arguments), ...);
    return in.ok();
}
}  // namespace detail

// Stores a reply's outputs through the caller's pointers; false if the bytes are not a valid encoding.
template <class Call>
bool read_reply(std::span<std::byte> body, Arguments arguments) {
    return detail::read_reply<Call>(body, arguments, Indices<Call>{});
}

}  // namespace gpupool::codec
