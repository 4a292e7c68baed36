// What cuda.h cannot say about a call: how it is delivered, and what each pointer parameter means.
//
// A line of the call table (`table.def`) names its rules; they are constant values, looked up at compile time by the
// codec and by both ends. A pointer parameter without a rule does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpupool::calls {

// How a call reaches the driver, and what its caller waits for.
enum class Delivery : std::uint8_t {
    local,     // answered by the client from the session's state; nothing travels for its sake alone
    deferred,  // no outputs, or outputs that the client knows beforehand: sent, not waited for
    sync,      // the caller waits for the reply; the server answers at once
    blocking,  // the caller waits, and the driver may wait for the GPU or do long work: on a helper thread (a served
               // call's handler begins on the dispatcher, and gives such work to a helper itself)
    callback,  // holds a function of the application, which runs in the client
    refused,   // answered with CUDA_ERROR_NOT_SUPPORTED, by name
};

std::string_view to_string(Delivery delivery) noexcept;

enum class Rule : std::uint8_t {
    none,
    in,         // one struct, read by the driver; may be null
    out,        // one object, written by the driver; may be null
    inout,      // read, then written
    in_array,   // `count` objects
    out_array,  // room for `count` objects
    text,       // NUL-terminated string
    out_text,   // room for `count` characters
    creates,    // a new handle; the client mints it, the server binds it to the driver's
    destroys,   // the handle ends with this call
    local,      // never leaves the client (handled there)
    address,    // a pointer that travels as the number it is
    // Of the whole call:
    handled,       // the client has a function of the same name in client/calls/, which may send the call
    composed,      // as handled, but made of gpupool's own calls: it never travels under its own opcode
    served,        // the server has a function of the same name in server/worker/handlers/
    stream_order,  // enqueues work on its stream parameter (or, without one, on the default stream)
    after_held,    // ends what work that was sent before may use: not before that is issued
    synchronizes,  // reports what failed among the deferred calls before it
    no_capture,    // not permitted while a stream captures, but in relaxed mode
    // Of calls that need not wait while the server stays out of the driver (server/worker/scheduling/set_aside.h):
    needs_no_driver,  // the GPU may be what waits for it
    gets_in,          // the driver lets it in, whoever waits there (docs/driver-facts.md)
    gets_in_first,    // the same, and what other threads sent before says nothing of its answer
    before_init,      // may be called before cuInit
    because,          // why a call is refused
};

struct RuleEntry {
    Rule rule = Rule::none;
    int parameter = -1;
    int count_parameter = -1;
    std::size_t count = 0;
    const char* note = nullptr;
    int count_adjustment = 0;  // the array has this many more (fewer) elements than the count parameter says
};

constexpr RuleEntry in(int p) {
    return {Rule::in, p};
}
constexpr RuleEntry out(int p) {
    return {Rule::out, p};
}
constexpr RuleEntry inout(int p) {
    return {Rule::inout, p};
}
constexpr RuleEntry in_array(int p, int count) {
    return {Rule::in_array, p, count};
}
constexpr RuleEntry in_array_of(int p, std::size_t fixed) {
    return {Rule::in_array, p, -1, fixed};
}
constexpr RuleEntry out_array(int p, int count) {
    return {Rule::out_array, p, count};
}
constexpr RuleEntry out_array_of(int p, std::size_t fixed) {
    return {Rule::out_array, p, -1, fixed};
}
constexpr RuleEntry text(int p) {
    return {Rule::text, p};
}
constexpr RuleEntry out_text(int p, int count) {
    return {Rule::out_text, p, count};
}
constexpr RuleEntry creates(int p) {
    return {Rule::creates, p};
}
constexpr RuleEntry destroys(int p) {
    return {Rule::destroys, p};
}
constexpr RuleEntry in_array_less_one(int p, int count) {
    return {Rule::in_array, p, count, 0, nullptr, -1};
}
constexpr RuleEntry in_array_less_two(int p, int count) {
    return {Rule::in_array, p, count, 0, nullptr, -2};
}
constexpr RuleEntry address(int p) {
    return {Rule::address, p};
}
constexpr RuleEntry stays(int p) {
    return {Rule::local, p};
}
// Words of the table, as the functions above.
// NOLINTBEGIN(readability-identifier-naming)
constexpr RuleEntry handled{Rule::handled};
constexpr RuleEntry composed{Rule::composed};
constexpr RuleEntry served{Rule::served};
constexpr RuleEntry before_init{Rule::before_init};
constexpr RuleEntry stream_order{Rule::stream_order};
constexpr RuleEntry after_held{Rule::after_held};
constexpr RuleEntry synchronizes{Rule::synchronizes};
constexpr RuleEntry no_capture{Rule::no_capture};
constexpr RuleEntry needs_no_driver{Rule::needs_no_driver};
constexpr RuleEntry gets_in{Rule::gets_in};
constexpr RuleEntry gets_in_first{Rule::gets_in_first};
// NOLINTEND(readability-identifier-naming)
constexpr RuleEntry because(const char* why) {
    return {Rule::because, -1, -1, 0, why};
}

template <class... Entry>
constexpr std::array<RuleEntry, sizeof...(Entry)> rule_set(Entry... entries) {
    return {entries...};
}

template <std::size_t N>
constexpr RuleEntry rule_of(const std::array<RuleEntry, N>& rules, int parameter) {
    for (const RuleEntry& entry : rules) {
        if (entry.parameter == parameter) {
            return entry;
        }
    }
    return {};
}

template <std::size_t N>
constexpr bool has_rule(const std::array<RuleEntry, N>& rules, Rule rule) {
    for (const RuleEntry& entry : rules) {
        if (entry.rule == rule) {
            return true;
        }
    }
    return false;
}

}  // namespace gpupool::calls
