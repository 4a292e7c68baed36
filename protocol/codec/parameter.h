// How one parameter of a call is encoded, derived from its type and its rule.
#pragma once

#include <cstddef>
#include <type_traits>

#include "protocol/calls/call.h"
#include "protocol/codec/struct_traits.h"

namespace gpupool::codec {

using calls::ArgumentOf;
using calls::Rule;
using calls::rule_at;
using calls::RuleEntry;

// `void` and `const void` data counts as bytes.
template <class T>
using PointeeOf = std::conditional_t<std::is_void_v<std::remove_pointer_t<T>>, std::byte,
                                     std::remove_const_t<std::remove_pointer_t<T>>>;

enum class Shape {
    value,      // sent in the command as it is (or as a handle)
    address,    // a pointer, sent as a number
    absent,     // not sent
    in,         // one object, client to worker
    out,        // one object, worker to client
    inout,      // one object, in both directions
    in_array,   // objects, client to worker
    out_array,  // objects, worker to client
    text,       // a string, client to worker
    creates,    // the minted handle, client to worker
};

// Handles are pointers to incomplete types, not pointers to data.
template <class T>
inline constexpr bool is_data_pointer = std::is_pointer_v<T> && !is_handle<T>;

template <class Call, int Index>
constexpr Shape shape_of() {
    using T = ArgumentOf<Call, Index>;
    constexpr Rule kRule = rule_at<Call, Index>.rule;
    if constexpr (kRule == Rule::local) {
        return Shape::absent;
    } else if constexpr (kRule == Rule::address) {
        return Shape::address;
    } else if constexpr (!is_data_pointer<T>) {
        static_assert(kRule == Rule::none || kRule == Rule::destroys, "a value takes no rule but destroys()");
        return Shape::value;
    } else {
        static_assert(kRule != Rule::none, "a pointer parameter needs a rule");
        switch (kRule) {
            case Rule::in: return Shape::in;
            case Rule::out: return Shape::out;
            case Rule::inout: return Shape::inout;
            case Rule::in_array: return Shape::in_array;
            case Rule::out_array:
            case Rule::out_text: return Shape::out_array;
            case Rule::text: return Shape::text;
            case Rule::creates: return Shape::creates;
            default: return Shape::absent;
        }
    }
}

template <class Call, int Index>
inline constexpr Shape shape = shape_of<Call, Index>();

template <class Call, int Index>
inline constexpr bool has_output =
    shape<Call, Index> == Shape::out || shape<Call, Index> == Shape::inout || shape<Call, Index> == Shape::out_array;

namespace detail {
template <class Call, int... Index>
constexpr bool any_output(std::integer_sequence<int, Index...>) {
    return (has_output<Call, Index> || ... || false);
}
}  // namespace detail

template <class Call>
using Indices = std::make_integer_sequence<int, Call::kArity>;
template <class Call>
inline constexpr bool any_output = detail::any_output<Call>(Indices<Call>{});

// Arguments are passed around as an array of their addresses.
using Arguments = const void* const*;

template <class Call, int Index>
const ArgumentOf<Call, Index>& argument(Arguments arguments) {
    return *static_cast<const ArgumentOf<Call, Index>*>(arguments[Index]);
}

// Number of elements of an array parameter, from its rule and the count parameter's value. 0 if the count parameter is
// a null pointer.
template <class Call, int Index>
std::size_t element_count(Arguments arguments) {
    constexpr RuleEntry kEntry = rule_at<Call, Index>;
    if constexpr (kEntry.count_parameter < 0) {
        return kEntry.count;
    } else {
        const auto& count = argument<Call, kEntry.count_parameter>(arguments);
        std::size_t n = 0;
        if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(count)>>) {
            n = count == nullptr ? 0 : static_cast<std::size_t>(*count);
        } else {
            n = static_cast<std::size_t>(count);
        }
        constexpr int kAdjustment = kEntry.count_adjustment;
        if (kAdjustment < 0 && n < static_cast<std::size_t>(-kAdjustment)) {
            return 0;
        }
        return n + static_cast<std::size_t>(static_cast<std::ptrdiff_t>(kAdjustment));
    }
}

}  // namespace gpupool::codec
