// Builds command bodies from fuzz bytes that are mostly valid for their call: counts match their arrays, texts are
// terminated, handles have the right kind and few values. Purely random bytes rarely pass the decoder.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "protocol/codec/command.h"

namespace gpupool::fuzz {

// The input's bytes, then zeros.
class Input {
  public:
    explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
    [[nodiscard]] bool empty() const { return bytes_.empty(); }
    std::uint8_t byte() {
        if (bytes_.empty()) {
            return 0;
        }
        const std::uint8_t value = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return value;
    }
    std::uint64_t number(int size) {
        std::uint64_t value = 0;
        for (int i = 0; i < size; ++i) {
            value |= std::uint64_t{byte()} << (8 * i);
        }
        return value;
    }
    std::vector<std::byte> take(std::size_t count) {
        count = std::min(count, bytes_.size());
        const auto part = std::as_bytes(bytes_.first(count));
        bytes_ = bytes_.subspan(count);
        return {part.begin(), part.end()};
    }

  private:
    std::span<const std::uint8_t> bytes_;
};

using Body = std::vector<std::byte>;

inline void put(Body& body, const void* data, std::size_t bytes) {
    const std::size_t at = body.size();
    body.resize(at + codec::aligned(bytes));
    if (bytes != 0) {
        std::memcpy(body.data() + at, data, bytes);
    }
}
inline void put(Body& body, std::uint64_t value) {
    put(body, &value, sizeof value);
}

// Objects repeat a few bytes of the input, so that a short input can fill large ones.
inline void put_object(Input& in, Body& body, std::size_t bytes) {
    std::vector<std::byte> object(bytes);
    const std::uint8_t mode = in.byte();
    for (std::size_t i = 0; i < bytes && mode != 0; ++i) {
        object[i] = i < 64 ? static_cast<std::byte>(in.byte()) : object[i % 64];
    }
    put(body, object.data(), bytes);
}

inline std::uint64_t some_handle(Input& in, codec::HandleKind kind) {
    const std::uint8_t choice = in.byte();
    if (choice < 8) {
        return choice % 3;  // NULL and the special streams
    }
    if (choice > 250) {
        return in.number(8);
    }
    return codec::make_handle(kind, 1 + choice % 3);
}

template <class Call, int Index>
void build_parameter(Input& in, Body& body, std::uint64_t count) {
    using T = calls::ArgumentOf<Call, Index>;
    using codec::Shape;
    constexpr Shape kKind = codec::shape<Call, Index>;
    if constexpr (kKind == Shape::value) {
        if constexpr (codec::is_handle<T>) {
            put(body, some_handle(in, codec::handle_kind_of<T>));
        } else {
            T value{};
            const std::uint64_t number = (in.byte() & 3) == 0 ? in.number(8) : count;
            std::memcpy(static_cast<void*>(&value), &number, std::min(sizeof value, sizeof number));
            put(body, &value, sizeof value);
        }
    } else if constexpr (kKind == Shape::address) {
        put(body, in.number(8));
    } else if constexpr (kKind == Shape::in || kKind == Shape::inout) {
        const bool there = (in.byte() & 15) != 0;
        put(body, std::uint64_t{there});
        if (there) {
            put_object(in, body, sizeof(codec::PointeeOf<T>));
        }
    } else if constexpr (kKind == Shape::in_array) {
        constexpr calls::RuleEntry kRule = calls::rule_at<Call, Index>;
        std::uint64_t elements = kRule.count_parameter < 0 ? kRule.count : count;
        const auto less = static_cast<std::uint64_t>(-kRule.count_adjustment);
        elements = elements < less ? 0 : elements - less;
        const bool there = (in.byte() & 15) != 0;
        put(body, there ? elements + 1 : 0);
        if (there) {
            put_object(in, body, elements * sizeof(codec::PointeeOf<T>));
        }
    } else if constexpr (kKind == Shape::text) {
        char text[8] = "kernel?";
        text[6] = static_cast<char>(in.byte());
        put(body, sizeof text);
        put(body, text, sizeof text);
    } else if constexpr (kKind == Shape::creates) {
        put(body, some_handle(in, codec::handle_kind_of<codec::PointeeOf<T>>));
    } else if constexpr (kKind != Shape::absent) {
        put(body, std::uint64_t{(in.byte() & 15) != 0});
    }
}

namespace detail {
template <class Call, int... Index>
Body build(Input& in, std::integer_sequence<int, Index...>) {
    Body body;
    [[maybe_unused]] const std::uint64_t count = in.byte() % 5;
    (build_parameter<Call, Index>(in, body, count), ...);
    return body;
}
}  // namespace detail

template <class Call>
Body build_command(Input& in) {
    return detail::build<Call>(in, codec::Indices<Call>{});
}

}  // namespace gpupool::fuzz
