// Encodes a call's command body and reply body as client and worker do.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "protocol/codec/reply.h"

namespace gpupool::test {

namespace detail {
template <class Call, class Sequence>
struct Encoder;
template <class Call, int... Index>
struct Encoder<Call, std::integer_sequence<int, Index...>> {
    static std::vector<std::byte> command(calls::ArgumentOf<Call, Index>... arguments) {
        const void* const addresses[] = {static_cast<const void*>(&arguments)..., nullptr};
        std::vector<std::byte> body(codec::command_bytes<Call>(addresses));
        codec::Writer out(body.data());
        codec::write_command<Call>(out, addresses);
        EXPECT_EQ(out.place(), body.data() + body.size()) << Call::kName << " wrote another size than it announced";
        EXPECT_EQ(body.size() % codec::kAlignment, 0u) << Call::kName;
        return body;
    }
    static bool read_reply(std::span<std::byte> body, calls::ArgumentOf<Call, Index>... arguments) {
        const void* const addresses[] = {static_cast<const void*>(&arguments)..., nullptr};
        return codec::read_reply<Call>(body, addresses);
    }
};
}  // namespace detail

template <class Call, class... Given>
std::vector<std::byte> command(Given... arguments) {
    return detail::Encoder<Call, codec::Indices<Call>>::command(arguments...);
}

template <class Call>
std::vector<std::byte> reply(codec::Slots<Call>& slots) {
    std::vector<std::byte> body(codec::reply_bytes<Call>(slots));
    codec::Writer out(body.data());
    codec::write_reply<Call>(out, slots);
    EXPECT_EQ(out.place(), body.data() + body.size()) << Call::kName << " wrote another size than it announced";
    return body;
}

// `arguments` are the call's own.
template <class Call, class... Given>
bool read_reply(std::span<std::byte> body, Given... arguments) {
    return detail::Encoder<Call, codec::Indices<Call>>::read_reply(body, arguments...);
}

// For calls that can return attributes, when the caller wants none.
inline constexpr int* kNoAttributes = nullptr;

template <class Handle>
Handle handle(codec::HandleKind kind, std::uint64_t serial) {
    return codec::from_wire<Handle>(codec::make_handle(kind, serial));
}

}  // namespace gpupool::test
