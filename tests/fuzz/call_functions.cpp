#include "tests/fuzz/call_functions.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "server/worker/dispatch/dispatch_table.h"
#include "tests/fuzz/calls/entry.h"

namespace gpupool::fuzz {
namespace {

std::vector<CallFunctions> build() {
    std::vector<CallFunctions> functions;
    add_code_calls(functions);
    add_internal_calls(functions);
    add_memory_calls(functions);
    add_streams_calls(functions);
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
