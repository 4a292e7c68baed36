#include "tests/fuzz/call_functions.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "protocol/codec/reply.h"
#include "server/worker/dispatch/dispatch_table.h"

namespace gpupool::fuzz {
namespace {

template <class Call>
void decode(std::span<std::byte> command, std::span<std::byte> reply) {
    codec::Slots<Call> slots;
    if (!slots.read(command)) {
        return;
    }
    // The worker's side of the reply, which writes exactly the announced size.
    Body written(codec::reply_bytes<Call>(slots));
    codec::Writer out(written.data());
    codec::write_reply<Call>(out, slots);
    if (out.place() != written.data() + written.size() || !codec::read_reply<Call>(written, slots.addresses)) {
        std::abort();
    }
    // The client's side: whatever the server sends, it writes only within the caller's memory.
    (void)codec::read_reply<Call>(reply, slots.addresses);
}

template <class Call>
void add(std::vector<CallFunctions>& functions) {
    if constexpr (calls::is_remote<Call>) {
        functions.push_back({Call::kOpcode, build_command<Call>, decode<Call>});
    }
}

std::vector<CallFunctions> build() {
    std::vector<CallFunctions> functions;
#define GP_CALL(op, symbol, ...) add<calls::symbol>(functions);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    std::sort(functions.begin(), functions.end(),
              [](const CallFunctions& a, const CallFunctions& b) { return a.opcode < b.opcode; });
    return functions;
}

}  // namespace

std::span<const CallFunctions> call_functions() {
    static const std::vector<CallFunctions>& functions = *new std::vector<CallFunctions>(build());
    return functions;
}

const CallFunctions* call_function(std::uint16_t opcode) {
    const auto functions = call_functions();
    const auto it = std::lower_bound(functions.begin(), functions.end(), opcode,
                                     [](const CallFunctions& f, std::uint16_t value) { return f.opcode < value; });
    return it != functions.end() && it->opcode == opcode ? &*it : nullptr;
}

void require_all_opcodes() {
    for (unsigned opcode = 0; opcode <= 0xffff; ++opcode) {
        const auto op = static_cast<std::uint16_t>(opcode);
        if ((worker::serve_function(op) != nullptr) != (call_function(op) != nullptr)) {
            std::fprintf(stderr, "opcode %u is served by the worker or known to the fuzz targets, but not both\n",
                         opcode);
            std::abort();
        }
    }
}

}  // namespace gpupool::fuzz
