// Rules that every line of the table must satisfy.
#include <gtest/gtest.h>

#include "protocol/codec/parameter.h"

namespace gpupool::test {
namespace {

// The client cuts an output array to the room that its count gives. If that count were an output decoded before the
// array, the server could choose how much the client writes.
template <class Call, int Index>
constexpr bool room_is_the_callers() {
    if constexpr (codec::shape<Call, Index> == codec::Shape::out_array) {
        constexpr int kCount = calls::rule_at<Call, Index>.count_parameter;
        if constexpr (kCount >= 0) {
            return !codec::has_output<Call, kCount> || kCount > Index;
        }
    }
    return true;
}

// An array's length is given by its count, so the worker must receive the count.
template <class Call, int Index>
constexpr bool count_travels() {
    constexpr codec::Shape kKind = codec::shape<Call, Index>;
    if constexpr (kKind == codec::Shape::in_array || kKind == codec::Shape::out_array) {
        constexpr int kCount = calls::rule_at<Call, Index>.count_parameter;
        if constexpr (kCount >= 0) {
            constexpr codec::Shape kHow = codec::shape<Call, kCount>;
            return kHow == codec::Shape::value || kHow == codec::Shape::in || kHow == codec::Shape::inout;
        }
    }
    return true;
}

template <class Call, int... Index>
constexpr bool rooms_are_the_callers(std::integer_sequence<int, Index...>) {
    return (room_is_the_callers<Call, Index>() && ... && true);
}
template <class Call, int... Index>
constexpr bool counts_travel(std::integer_sequence<int, Index...>) {
    return (count_travels<Call, Index>() && ... && true);
}

template <class Call>
void check() {
    if constexpr (calls::is_remote<Call>) {
        EXPECT_TRUE(rooms_are_the_callers<Call>(codec::Indices<Call>{})) << Call::kName;
        EXPECT_TRUE(counts_travel<Call>(codec::Indices<Call>{})) << Call::kName;
        // A deferred call returns before any output could arrive.
        EXPECT_FALSE(Call::kDelivery == calls::Delivery::deferred && codec::any_output<Call>) << Call::kName;
    }
}

TEST(Rules, HoldForEveryCall) {
#define GP_CALL(op, symbol, ...) check<calls::symbol>();
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
}

}  // namespace
}  // namespace gpupool::test
