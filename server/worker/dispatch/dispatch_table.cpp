#include "server/worker/dispatch/dispatch_table.h"

#include <array>

#include "server/worker/dispatch/serve.h"

namespace gpupool::worker {
namespace {

constexpr std::size_t kSymbols = 1024;
constexpr std::size_t kInternal = 128;

struct Entry {
    Serve serve = nullptr;
    Passage passage = Passage::none;
};
struct Tables {
    std::array<Entry, kSymbols> symbols{};
    std::array<Entry, kInternal> internal{};
};

template <class Call>
constexpr Passage passage() {
    const auto has = [](calls::Rule rule) { return calls::has_rule(Call::kRules, rule); };
    return has(calls::Rule::needs_no_driver) ? Passage::needs_no_driver
           : has(calls::Rule::gets_in_first) ? Passage::gets_in_first
           : has(calls::Rule::gets_in)       ? Passage::gets_in
                                             : Passage::none;
}

Tables build() {
    Tables tables;
    const auto set = [&](calls::Opcode opcode, Passage passage, Serve serve) {
        if (opcode >= calls::kFirstInternalOpcode) {
            tables.internal.at(opcode - calls::kFirstInternalOpcode) = {serve, passage};
        } else {
            tables.symbols.at(opcode) = {serve, passage};
        }
    };
#define GP_CALL(op, symbol, ...)                                                                               \
    []<class Call>(Call*, auto& set_entry) {                                                                   \
        if constexpr (calls::is_remote<Call>) {                                                                \
            set_entry(                                                                                         \
                Call::kOpcode, passage<Call>(), +[](Worker& worker, Command& command) {                        \
                    serve<Call>(worker, command, [](Worker& w, Command& c, codec::Slots<Call>& s) -> Outcome { \
                        return handlers::symbol(w, c, s);                                                      \
                    });                                                                                        \
                });                                                                                            \
        }                                                                                                      \
    }(static_cast<calls::symbol*>(nullptr), set);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    return tables;
}

Entry entry_of(calls::Opcode opcode) noexcept {
    static const Tables tables = build();
    if (opcode >= calls::kFirstInternalOpcode) {
        const std::size_t index = opcode - calls::kFirstInternalOpcode;
        return index < kInternal ? tables.internal[index] : Entry{};
    }
    return opcode < kSymbols ? tables.symbols[opcode] : Entry{};
}

}  // namespace

Serve serve_function(calls::Opcode opcode) noexcept {
    return entry_of(opcode).serve;
}

Passage passage_of(calls::Opcode opcode) noexcept {
    return entry_of(opcode).passage;
}

}  // namespace gpupool::worker
