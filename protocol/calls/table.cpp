#include "protocol/calls/table.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "protocol/calls/call.h"

namespace gpupool::calls {

std::string_view to_string(Delivery delivery) noexcept {
    switch (delivery) {
        case Delivery::local: return "local";
        case Delivery::deferred: return "deferred";
        case Delivery::sync: return "sync";
        case Delivery::blocking: return "blocking";
        case Delivery::callback: return "callback";
        case Delivery::refused: return "refused";
    }
    return "unknown";
}

namespace {

template <class Call>
constexpr const char* why_refused() {
    for (const RuleEntry& entry : Call::kRules) {
        if (entry.rule == Rule::because) {
            return entry.note;
        }
    }
    return nullptr;
}

template <class Call>
constexpr CallInfo info() {
    constexpr bool kInternal = Call::kOpcode >= kFirstInternalOpcode;
    static_assert(Call::kDelivery != Delivery::refused || why_refused<Call>() != nullptr, "a refusal needs because()");
    return {Call::kOpcode,
            Call::kName,
            kInternal ? std::string_view{} : Call::kBaseName,
            Call::kSince,
            Call::kDelivery,
            has_rule(Call::kRules, Rule::composed),
            has_rule(Call::kRules, Rule::handled),
            why_refused<Call>(),
            nullptr,
            0};
}

struct PerThread {
    std::string_view symbol;
    const char* suffix;
    int since;
};

std::vector<CallInfo> build() {
    std::vector<CallInfo> calls = {
#define GP_CALL(op, symbol, ...) info<symbol>(),
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    };
    static constexpr PerThread kPerThread[] = {
#define GP_CALL(...)
#define GP_PER_THREAD(symbol, suffix, since, params) {#symbol, #suffix, since},
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    };
    for (const PerThread& form : kPerThread) {
        const auto call =
            std::find_if(calls.begin(), calls.end(), [&](const CallInfo& c) { return c.name == form.symbol; });
        if (call != calls.end()) {
            call->per_thread_suffix = form.suffix;
            call->per_thread_since = form.since;
        }
    }
    std::sort(calls.begin(), calls.end(), [](const CallInfo& a, const CallInfo& b) { return a.opcode < b.opcode; });
    return calls;
}

const std::vector<CallInfo>& calls() {
    static const auto& table = *new std::vector<CallInfo>(build());
    return table;
}

// A reused opcode does not compile, because one switch would have the same case twice.
[[maybe_unused]] constexpr int opcodes_are_unique(Opcode opcode) {
    switch (opcode) {
#define GP_CALL(op, ...) case op:
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
        return 1;
        default: return 0;
    }
}

}  // namespace

std::span<const CallInfo> all_calls() noexcept {
    return calls();
}

const CallInfo* find(std::uint16_t opcode) noexcept {
    const auto& table = calls();
    const auto it = std::lower_bound(table.begin(), table.end(), opcode,
                                     [](const CallInfo& call, std::uint16_t value) { return call.opcode < value; });
    return it != table.end() && it->opcode == opcode ? &*it : nullptr;
}

std::string_view name_of(std::uint16_t opcode) noexcept {
    const CallInfo* call = find(opcode);
    return call == nullptr ? std::string_view("unknown") : call->name;
}

}  // namespace gpupool::calls
