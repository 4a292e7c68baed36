// Each line of the call table as a type: `calls::cuMemAlloc_v2` and so on, with its opcode, names, delivery and rules.
//
// The types are empty; all members are compile-time constants. `table.def` explains the columns of a line.
#pragma once

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/internal.h"
#include "protocol/calls/macros.h"
#include "protocol/calls/rules.h"

namespace gpupool::calls {

using Opcode = std::uint16_t;

// Opcodes below kFirstInternalOpcode belong to driver symbols, the others to gpupool's own calls (internal.h).
inline constexpr Opcode kFirstInternalOpcode = 0xF000;

#define GP_CALL(op, symbol, base, since, params, deliver, kind, ...)                      \
    struct symbol {                                                                       \
        using Function = decltype(&::symbol);                                             \
        enum Parameter : int { GP_STRIP params };                                         \
        static constexpr Opcode kOpcode = op;                                             \
        static constexpr std::string_view kName = #symbol;                                \
        static constexpr std::string_view kBaseName = #base;                              \
        static constexpr int kSince = since;                                              \
        static constexpr Delivery kDelivery = Delivery::deliver;                          \
        static constexpr Kind kKind = Kind::kind;                                         \
        static constexpr auto kRules = rule_set(__VA_ARGS__);                             \
        static constexpr int kArity = arity_of<Function>;                                 \
        static_assert(kArity == GP_COUNT params, #symbol ": wrong number of parameters"); \
    };
// The per-thread form of a call differs only in its default stream, so it has no opcode of its own.
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

template <class Call>
inline constexpr bool is_handled = Call::kDelivery == Delivery::local || has_rule(Call::kRules, Rule::handled) ||
                                   has_rule(Call::kRules, Rule::composed);
template <class Call>
inline constexpr bool is_served = has_rule(Call::kRules, Rule::served);
// True if the call is sent under its own opcode.
template <class Call>
inline constexpr bool is_remote = Call::kDelivery != Delivery::local && Call::kDelivery != Delivery::refused &&
                                  !has_rule(Call::kRules, Rule::composed);
// True if the call's work is ordered in a stream.
template <class Call>
inline constexpr bool in_stream_order = Call::kKind == Kind::work || Call::kKind == Kind::order;
template <class Call>
inline constexpr std::uint16_t behaviour_of = [] {
    for (const RuleEntry& entry : Call::kRules) {
        if (entry.rule == Rule::behaviour) {
            return static_cast<std::uint16_t>(entry.count);
        }
    }
    return std::uint16_t{1};
}();

template <class Call, int Index>
using ArgumentOf = Argument<typename Call::Function, Index>;

template <class Call, int Index>
inline constexpr RuleEntry rule_at = rule_of(Call::kRules, Index);

}  // namespace gpupool::calls
