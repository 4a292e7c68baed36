// The decoders of all calls: command bodies as the worker reads them, and replies as the client does.
//
// An input selects the call, then holds either a raw body or bytes from which a valid body is built, then the reply.
#include <cstdint>

#include "tests/fuzz/call_functions.h"

using namespace gpupool;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    constexpr std::size_t kMaxInputBytes = 8u << 10;
    static const bool checked = [] {
        fuzz::require_all_opcodes();
        return true;
    }();
    if (!checked || size > kMaxInputBytes) {
        return 0;
    }
    fuzz::Input in({data, size});
    const auto calls = fuzz::call_functions();
    const fuzz::CallFunctions& call = calls[in.number(2) % calls.size()];
    const bool raw = (in.byte() & 3) == 0;
    const std::size_t raw_bytes = raw ? in.number(2) : 0;
    fuzz::Body command = raw ? in.take(raw_bytes) : call.build(in);
    // Both in allocations of exactly their size, so that AddressSanitizer detects reads behind their ends.
    command.shrink_to_fit();
    fuzz::Body reply = in.take(size);
    reply.shrink_to_fit();
    call.decode(command, reply);
    return 0;
}
