// Adds the calls of one part of the call table to the dispatch table.
//
// Included by the files beside it, one for each part: each instantiates what serves its calls.
#pragma once

#include <array>

#include "server/worker/dispatch/dispatch_table.h"
#include "server/worker/dispatch/serve.h"
#include "server/worker/handlers/handlers.h"

namespace gpupool::worker {

struct DispatchEntry {
    Serve serve = nullptr;
    Passage passage = Passage::none;
};

class DispatchTable {
  public:
    template <class Call>
    void add(Serve serve) {
        const auto has = [](calls::Rule rule) { return calls::has_rule(Call::kRules, rule); };
        entry_at(Call::kOpcode) = {serve, has(calls::Rule::needs_no_driver) ? Passage::needs_no_driver
                                          : has(calls::Rule::gets_in_first) ? Passage::gets_in_first
                                          : has(calls::Rule::gets_in)       ? Passage::gets_in
                                                                            : Passage::none};
    }
    // An empty entry for an opcode without a call.
    [[nodiscard]] DispatchEntry find(calls::Opcode opcode) const noexcept;

  private:
    static constexpr std::size_t kSymbols = 1024;
    static constexpr std::size_t kInternal = 128;

    DispatchEntry& entry_at(calls::Opcode opcode);

    std::array<DispatchEntry, kSymbols> symbols_{};
    std::array<DispatchEntry, kInternal> internal_{};
};

void add_general_calls(DispatchTable& table);
void add_code_calls(DispatchTable& table);
void add_memory_calls(DispatchTable& table);
void add_copies_calls(DispatchTable& table);
void add_arrays_calls(DispatchTable& table);
void add_streams_calls(DispatchTable& table);
void add_graphs_calls(DispatchTable& table);
void add_other_calls(DispatchTable& table);
void add_internal_calls(DispatchTable& table);

}  // namespace gpupool::worker

#define GP_CALL(op, symbol, ...)                                                                  \
    []<class Call>(Call*, DispatchTable& to) {                                                    \
        if constexpr (calls::is_remote<Call>) {                                                   \
            to.add<Call>(+[](Views& views, Command& command) {                                    \
                serve<Call>(views.session(), command, [&](codec::Slots<Call>& slots) -> Outcome { \
                    if constexpr (calls::is_served<Call>) {                                       \
                        return handlers::symbol(views, command, slots);                           \
                    }                                                                             \
                    return Outcome::answered();                                                   \
                });                                                                               \
            });                                                                                   \
        }                                                                                         \
    }(static_cast<calls::symbol*>(nullptr), table);
#define GP_PER_THREAD(...)
