// What a worker says of its own work while its session is traced: which command its dispatcher issued and when, what
// its helper threads did, what the GPU did in which stream. The client makes a timeline of it
// (client/core/tracing/server_trace.h).
//
// Times are nanoseconds of the worker's steady clock; those of GPU work are the GPU's, brought to that clock by the
// worker. Names are said once, before the first record that uses them. Both sides bound what they keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::codec {

enum class TraceKind : std::uint8_t {
    command = 1,   // the dispatcher was busy with a command
    helper = 2,    // a helper thread was, with the part of it that can block; `track` is the thread
    kernel = 3,    // from here on the GPU was, for the stream `track`
    copy_in = 4,   // host to device
    copy_out = 5,  // device to host
    copy = 6,      // device to device
    memset = 7,
    graph = 8,
};

enum TraceFlags : std::uint8_t {
    kTraceHeld = 1,      // the command was not given to the driver yet: its stream has to wait
    kTraceWasHeld = 2,   // it had been held before
    kTraceAnswered = 4,  // the client waits for its reply
};

struct TraceRecord {
    std::uint64_t begin_ns, end_ns;
    std::uint64_t number;     // of the command in the session; 0: work of the worker's own
    std::uint64_t bytes;      // of a copy
    std::uint32_t driver_ns;  // how much of it the driver's calls took; of commands and helpers
    std::uint32_t name;       // of a kernel: TraceName's id; 0: none
    std::uint32_t track;
    std::uint16_t opcode;
    TraceKind kind;
    std::uint8_t flags;
};
static_assert(sizeof(TraceRecord) == 48 && std::is_trivially_copyable_v<TraceRecord>);

// Before a notice's records: how many the worker has left out so far, because there were too many.
struct TraceHeader {
    std::uint64_t dropped_commands, dropped_gpu_work;
};

struct TraceName {
    std::uint32_t id;
    std::uint32_t is_track;  // 1: a stream's, whose records have `track` == id; 0: a kernel's
    std::uint64_t bytes;     // of the text that follows
};

inline constexpr std::size_t kMaxTraceRecords = 1024;  // in one notice
inline constexpr std::size_t kMaxTraceNameBytes = 4096;
inline constexpr std::size_t kMaxTraceNames = 64u << 10;  // kernels and streams of one session together

}  // namespace gpupool::codec
