// Adds the calls of one part of the call table to the functions of the fuzz targets.
//
// Included by the files beside it, one for a few parts each: a single file would take too long to compile.
#pragma once

#include <cstdlib>
#include <vector>

#include "protocol/codec/reply.h"
#include "tests/fuzz/call_functions.h"

namespace gpupool::fuzz {

void add_code_calls(std::vector<CallFunctions>& functions);
void add_internal_calls(std::vector<CallFunctions>& functions);
void add_memory_calls(std::vector<CallFunctions>& functions);
void add_streams_calls(std::vector<CallFunctions>& functions);

namespace detail {

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

}  // namespace detail
}  // namespace gpupool::fuzz

#define GP_CALL(op, symbol, ...) detail::add<calls::symbol>(functions);
#define GP_PER_THREAD(...)
