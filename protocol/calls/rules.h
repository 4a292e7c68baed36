// What cuda.h does not state about a call: how it is delivered, and what each pointer parameter means.
//
// A line of the call table (`table.def`) lists its rules. They are constants that the codec and both ends look up at
// compile time. A pointer parameter without a rule does not compile if the call travels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpupool::calls {

// How a call reaches the driver, and what its caller waits for.
enum class Delivery : std::uint8_t {
    local,     // answered by the client from the session's state; sends nothing of its own
    deferred,  // no outputs, or outputs that the client knows in advance: sent without waiting for a reply
    sync,      // the caller waits for the reply; the driver call does not block
    blocking,  // the caller waits for the reply; the driver call may wait for the GPU or take long, so a helper makes
               // it (the handler of a served call starts on the dispatcher and passes such work to a helper itself)
    callback,  // takes a function of the application, which runs in the client
    refused,   // answered with CUDA_ERROR_NOT_SUPPORTED; because() gives the reason
};

std::string_view to_string(Delivery delivery) noexcept;

// What a call gives the GPU, which decides how it passes the worker's gate (server/worker/gate/gate.h).
enum class Kind : std::uint8_t {
    none,   // no work
    work,   // kernels, copies, memsets, graphs, memory in stream order: in the order of its stream parameter (or,
            // without one, of the default stream)
    order,  // events, memory operations, host functions: in a stream's order too, but the GPU does nothing for long
    side,   // may wait for the GPU or take long, and belongs to no stream: loads, frees, limits. A helper makes it
};

enum class Rule : std::uint8_t {
    none,
    in,         // one struct, read by the driver; may be null
    out,        // one object, written by the driver; may be null
    inout,      // read, then written
    in_array,   // `count` objects
    out_array,  // room for `count` objects
    text,       // NUL-terminated string
    out_text,   // room for `count` characters
    creates,    // returns a new handle, which the client mints and the server binds to the driver's
    destroys,   // the handle is invalid after this call
    local,      // handled by the client and never sent
    address,    // a pointer that is sent as a number
    // Rules for the whole call:
    handled,       // the client has a function of the same name in client/calls/, which may send the call
    composed,      // as handled, but the client implements it with gpupool's own calls: never sent under its own opcode
    served,        // the server has a function of the same name in server/worker/handlers/
    after_queued,  // ends something that earlier work may use: executed only after that work has been issued
    synchronizes,  // reports failures of deferred calls before it
    no_capture,    // not permitted while a stream captures, except in relaxed mode
    // While a driver call waits for the GPU, the dispatcher makes no others ("driver closed",
    // server/worker/gate/gate.h). It still executes these:
    needs_no_driver,  // makes no driver call; the GPU may be waiting for it
    gets_in,          // the driver admits this call even while another call blocks in it (docs/driver-facts.md)
    gets_in_first,    // as gets_in, and may also overtake queued commands of other threads
    before_init,      // may be called before cuInit
    because,          // the reason for a refusal
    behaviour,        // the version of the call's meaning, if not 1 (docs/architecture/versions.md)
};

struct RuleEntry {
    Rule rule = Rule::none;
    int parameter = -1;
    int count_parameter = -1;
    std::size_t count = 0;
    const char* note = nullptr;
    int count_adjustment = 0;  // added to the value of the count parameter
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
constexpr RuleEntry after_queued{Rule::after_queued};
constexpr RuleEntry synchronizes{Rule::synchronizes};
constexpr RuleEntry no_capture{Rule::no_capture};
constexpr RuleEntry needs_no_driver{Rule::needs_no_driver};
constexpr RuleEntry gets_in{Rule::gets_in};
constexpr RuleEntry gets_in_first{Rule::gets_in_first};
// NOLINTEND(readability-identifier-naming)
constexpr RuleEntry because(const char* why) {
    return {Rule::because, -1, -1, 0, why};
}
// Raise it when the meaning of the call changes while its parameters do not.
constexpr RuleEntry behaviour(std::uint16_t number) {
    return {Rule::behaviour, -1, -1, number};
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
