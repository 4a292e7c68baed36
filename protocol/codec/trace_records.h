// Records of a worker's own work, sent while its session is traced: which command its dispatcher issued and when, what
// its helpers did, what the GPU did in which stream. The client makes a timeline of them
// (client/core/tracing/server_trace.h).
//
// Times are nanoseconds of the worker's steady clock; the worker converts the GPU's times to that clock. A name is sent
// once, before the first record that uses it. Both sides limit what they keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/calls/members.h"

namespace gpupool::codec {

enum class TraceKind : std::uint8_t {
    command = 1,   // the dispatcher was busy with a command
    helper = 2,    // a helper thread was busy, including the part that can block; `track` is the thread
    kernel = 3,    // from here on: the GPU was busy, for the stream `track`
    copy_in = 4,   // host to device
    copy_out = 5,  // device to host
    copy = 6,      // device to device
    memset = 7,
    graph = 8,
};

enum TraceFlags : std::uint8_t {
    kTraceQueued = 1,     // the command was queued instead of issued: it has to wait
    kTraceWasQueued = 2,  // the command had been queued before
    kTraceAnswered = 4,   // the client waits for its reply
};
inline constexpr unsigned kTraceReasonShift = 3;  // flags from this bit on: what it waited for last, a Reason

struct TraceRecord {
    std::uint64_t begin_ns, end_ns;
    std::uint64_t number;     // of the command in the session; 0: the worker's own work
    std::uint64_t bytes;      // of a copy
    std::uint32_t driver_ns;  // time spent in driver calls; of commands and helpers
    std::uint32_t name;       // of a kernel: TraceName's id; 0: none
    std::uint32_t track;
    std::uint16_t opcode;
    TraceKind kind;
    std::uint8_t flags;
};
GP_MEMBERS(TraceRecord, begin_ns, end_ns, number, bytes, driver_ns, name, track, opcode, kind, flags);
static_assert(sizeof(TraceRecord) == 48 && std::is_trivially_copyable_v<TraceRecord>);

// Precedes the records of a notice: how many records the worker has omitted so far because there were too many.
struct TraceHeader {
    std::uint64_t dropped_commands, dropped_gpu_work;
};
GP_MEMBERS(TraceHeader, dropped_commands, dropped_gpu_work);

struct TraceName {
    std::uint32_t id;
    std::uint32_t is_track;  // 1: of a stream, whose records have `track` == id; 0: of a kernel
    std::uint64_t bytes;     // of the text that follows
};
GP_MEMBERS(TraceName, id, is_track, bytes);

inline constexpr std::size_t kMaxTraceRecords = 1024;  // in one notice
inline constexpr std::size_t kMaxTraceNameBytes = 4096;
inline constexpr std::size_t kMaxTraceNames = 64u << 10;  // kernels and streams of one session in total

}  // namespace gpupool::codec
