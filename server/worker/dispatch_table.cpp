#include "server/worker/dispatch_table.h"

#include <array>

#include "server/worker/serve.h"

namespace gpupool::worker {
namespace {

constexpr std::size_t kSymbols = 1024;
constexpr std::size_t kInternal = 128;

struct Tables {
    std::array<Serve, kSymbols> symbols{};
    std::array<Serve, kInternal> internal{};
};

Tables build() {
    Tables tables;
    const auto set = [&](calls::Opcode opcode, Serve serve) {
        if (opcode >= calls::kFirstInternalOpcode) {
            tables.internal.at(opcode - calls::kFirstInternalOpcode) = serve;
        } else {
            tables.symbols.at(opcode) = serve;
        }
    };
#define GP_CALL(op, symbol, ...)                                                                               \
    []<class Call>(Call*, auto& set_entry) {                                                                   \
        if constexpr (calls::is_remote<Call>) {                                                                \
            set_entry(                                                                                         \
                Call::kOpcode, +[](Worker& worker, Command& command) {                                         \
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

}  // namespace

Serve serve_function(calls::Opcode opcode) noexcept {
    static const Tables tables = build();
    if (opcode >= calls::kFirstInternalOpcode) {
        const std::size_t index = opcode - calls::kFirstInternalOpcode;
        return index < kInternal ? tables.internal[index] : nullptr;
    }
    return opcode < kSymbols ? tables.symbols[opcode] : nullptr;
}

}  // namespace gpupool::worker
