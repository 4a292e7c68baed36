// Counts the memory that the driver takes by itself when a program makes contexts, streams and graphs, sets a limit of
// a context, or launches a kernel that needs more local memory than any before it.
//
// - Contexts, except the first on a device, which the daemon has promised beside the quota (server/daemon/accounts.h).
//   The first streams of a context count as part of it.
// - Further streams, and the nodes of executable graphs beyond the first ones, which are within the tolerance of 32
// MiB.
//   The driver keeps their memory for others.
// - Stacks, which are local memory: the context has room for the largest stack that was set or needed, for as many
//   threads as the device runs at once. The driver takes that memory at once and gives it back when the limit is
//   lowered.
// - The device's heap, in the size of its limit. (The print buffer takes none: docs/driver-facts.md.)
// Those of the last two that a new context has are not counted here.
//
// Ownership: `account` outlives this. Threads: the dispatcher's alone.
// Errors: CUDA_ERROR_OUT_OF_MEMORY if the quota is used up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "protocol/calls/cuda_api.h"
#include "server/driver/api.h"

namespace gpupool::worker {

struct ContextState;
class MemoryAccount;

class DriverMemory {
  public:
    static constexpr std::size_t kStreamsOfContext = 32;

    explicit DriverMemory(MemoryAccount& account) : account_(account) {}

    using Limits = std::map<CUlimit, std::size_t>;
    // The limits that count, of the current context. Any thread.
    static Limits read_limits(const driver::Api& api);
    // A context was made, with these limits.
    void made(const driver::Api& api, const ContextState& context, Limits limits);

    // The memory that a value of the limit takes in the context, and the memory that is counted for that limit now.
    [[nodiscard]] std::uint64_t needed_bytes(const ContextState& context, CUlimit limit, std::size_t value) const;
    [[nodiscard]] std::uint64_t counted_bytes(const ContextState& context, CUlimit limit) const;
    // Sets the memory that is counted. A greater number must have been charged already; a smaller one is released.
    void count(const ContextState& context, CUlimit limit, std::uint64_t bytes);
    // The stack for which room is counted in the context.
    [[nodiscard]] std::size_t counted_stack(const ContextState& context) const;
    void forget(const ContextState& context);

    // The memory to charge for a context more on the device. begin_context() and end_context() count them; forget()
    // calls the latter for a context that was made.
    [[nodiscard]] std::uint64_t needed_for_context(CUdevice device) const;
    void begin_context(CUdevice device) { ++contexts_on_[device]; }
    void end_context(CUdevice device);

    // The memory to charge for so many streams in a context, or nodes in the session's executable graphs: for those
    // beyond the greatest number so far. The note_ functions say that it was charged.
    [[nodiscard]] std::uint64_t needed_for_streams(const ContextState& context, std::size_t count) const;
    void note_streams(const ContextState& context, std::size_t count);
    [[nodiscard]] std::uint64_t needed_for_nodes(std::uint64_t count) const;
    void note_nodes(std::uint64_t count) { most_nodes_ = std::max(most_nodes_, count); }

  private:
    struct Context {
        Limits original;
        std::uint64_t threads = 0;  // that the device runs at once
        std::size_t most_streams = 0;
        std::map<CUlimit, std::uint64_t> counted_bytes;
    };

    MemoryAccount& account_;
    std::map<const ContextState*, Context> contexts_;  // those that own limits: no green ones
    std::map<CUdevice, std::size_t> contexts_on_;      // those in making included
    std::uint64_t most_nodes_ = 0;
};

}  // namespace gpupool::worker
