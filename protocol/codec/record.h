// Records: the content of `commands` and `replies` frames.
//
// A record is a fixed header and a body; their total size is a multiple of 8 bytes. Both ends have the same byte order
// and ABI (x86-64 Linux). The headers belong to the protocol version (session.capnp); client and server agree on calls
// and notices one by one (agreement.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/calls/members.h"

namespace gpupool::codec {

inline constexpr std::size_t kAlignment = 8;
constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) & ~(kAlignment - 1);
}

enum CommandFlags : std::uint16_t {
    kReplyWanted = 1,
    kPerThreadDefaultStream = 2,  // a NULL stream is the calling thread's per-thread stream
};

struct CommandHeader {
    std::uint32_t bytes;  // of the record, header included
    std::uint16_t opcode;
    std::uint16_t flags;
    std::uint64_t number;   // of the command in the session: 1, 2, 3, ...
    std::uint64_t context;  // handle of the calling thread's current context, or 0
    std::uint32_t thread;   // index of the calling thread, from 0
    std::uint32_t reserved;
};
GP_MEMBERS(CommandHeader, bytes, opcode, flags, number, context, thread, reserved);
static_assert(sizeof(CommandHeader) == 32 && std::is_trivially_copyable_v<CommandHeader>);

enum class ReplyKind : std::uint16_t {
    result = 0,  // reply to a command: `result`, then outputs
    notice = 1,  // a notice: see NoticeType
};

struct ReplyHeader {
    std::uint32_t bytes;
    std::uint16_t opcode;  // of the command; for a notice, the NoticeType
    ReplyKind kind;
    std::uint64_t number;         // of the command
    std::int32_t result;          // CUresult
    std::int32_t deferred;        // CUresult of an earlier deferred call that this call reports, or 0
    std::uint32_t thread;         // of the command
    std::uint32_t other_context;  // 1: the deferred call failed in another context than the command was sent in
};
GP_MEMBERS(ReplyHeader, bytes, opcode, kind, number, result, deferred, thread, other_context);
static_assert(sizeof(ReplyHeader) == 32 && std::is_trivially_copyable_v<ReplyHeader>);

// Notices: messages of a worker that are not replies. layout.cpp has the layout of each.
enum class NoticeType : std::uint16_t {
    pull = 1,              // PullNotice: send this part of a transfer now
    host_function = 2,     // HostFunctionNotice: run it, then send gpHostFunctionDone
    deferred_error = 3,    // DeferredErrorNotice: a deferred call failed
    throttle = 4,          // StreamThrottleNotice: throttle a stream, or end that
    output = 5,            // output of kernels: 8 bytes of length, then the text
    transfer_failed = 6,   // TransferFailedNotice: no further pieces of it will be pulled or sent
    graph_function = 7,    // GraphFunctionNotice: as host_function, for a graph's node
    graph_upload = 8,      // GraphCopyNotice: send this host memory as bulk data of the transfer, in pieces
    graph_download = 9,    // GraphCopyNotice: the transfer's bulk data goes to this host memory
    errors = 10,           // as output, for standard error: failed assertions
    host_memory = 11,      // changes of mapped host memory by the GPU: a record of memory_changes.h
    event_complete = 12,   // EventCompleteNotice: a record watched by gpEventWatch has completed
    pieces_sent = 13,      // PiecesSentNotice: the client acts on later records only after these pieces have landed
    ended = 14,            // the last notice: why the server has ended the session; 8 bytes of length, then the text
    ahead_taken = 15,      // AheadTakenNotice: data sent ahead of this transfer no longer counts against kMaxAheadBytes
    slab_prepared = 16,    // SlabPreparedNotice: the result of gpSlabPrepare
    stream_complete = 17,  // StreamCompleteNotice: a stream watched by gpStreamWatch has completed
    trace_records = 20,    // TraceHeader, then TraceRecords (trace_records.h)
    trace_name = 21        // TraceName, then the text
};

// Raise it when the meaning of a notice changes while its layout does not: `case NoticeType::throttle: return 2;`.
constexpr std::uint16_t behaviour_of(NoticeType type) {
    switch (type) {
        default: return 1;
    }
}

struct PullNotice {
    std::uint64_t transfer, offset, bytes;
};
GP_MEMBERS(PullNotice, transfer, offset, bytes);
struct TransferFailedNotice {
    std::uint64_t transfer;
};
GP_MEMBERS(TransferFailedNotice, transfer);
struct AheadTakenNotice {
    std::uint64_t transfer;
};
GP_MEMBERS(AheadTakenNotice, transfer);
struct SlabPreparedNotice {
    std::uint64_t address;
    std::int32_t result;
    std::uint32_t reserved;
};
GP_MEMBERS(SlabPreparedNotice, address, result, reserved);
struct HostFunctionNotice {
    std::uint64_t ticket;
    std::int32_t status;  // CUresult for cuStreamAddCallback's function
    std::uint32_t reserved;
};
GP_MEMBERS(HostFunctionNotice, ticket, status, reserved);
struct GraphFunctionNotice {
    std::uint64_t ticket;    // for gpHostFunctionDone
    std::uint64_t function;  // the client's name for it; 0: no function, the client only answers, after it has
                             // processed earlier records
};
GP_MEMBERS(GraphFunctionNotice, ticket, function);
// The part of named host memory that a graph's copy reads or writes. Its data is sent packed.
struct GraphCopyNotice {
    std::uint64_t transfer;  // minted by the worker
    std::uint64_t memory;    // host_memory_number()
    std::uint64_t x_bytes, y, z, pitch_bytes, height;
    std::uint64_t width_bytes, rows, slices;
};
GP_MEMBERS(GraphCopyNotice, transfer, memory, x_bytes, y, z, pitch_bytes, height, width_bytes, rows, slices);
inline constexpr std::uint64_t kTransferOfWorker = 1ull << 63;
// Flag bits of a transfer's number. kTransferSentAhead: the client may send pieces of the transfer before the worker
// pulls them. The client keeps the total size of such data at or below kMaxAheadBytes until the worker reports that it
// has taken it (AheadTakenNotice, TransferFailedNotice).
inline constexpr std::uint64_t kTransferSentAhead = 1ull << 62;
// kTransferInOrder: an earlier download into the same memory is under way, so the worker sends the data of this one
// over the session's own connection, where the client handles it after all data sent before.
inline constexpr std::uint64_t kTransferInOrder = 1ull << 61;
inline constexpr std::size_t kAheadPieceBytes = 1u << 20;
inline constexpr std::uint64_t kMaxAheadBytes = 32u << 20;
inline constexpr std::size_t kGraphPieceBytes = 1u << 20;
// Limit on copies between graphs and the client's memory that are under way at one time in a session.
inline constexpr std::uint64_t kMaxGraphCopyBytes = 4ull << 30;

struct DeferredErrorNotice {
    std::uint64_t number;   // of the command
    std::uint64_t context;  // in which it failed
    std::int32_t result;
    std::uint16_t opcode;
    std::uint16_t reserved;
};
GP_MEMBERS(DeferredErrorNotice, number, context, result, opcode, reserved);
struct EventCompleteNotice {
    std::uint64_t event, record;
    std::int32_t result;
    std::uint32_t reserved;
};
GP_MEMBERS(EventCompleteNotice, event, record, result, reserved);
// Bulk data sent over lanes: all pieces up to this number (protocol/wire/lanes.h).
struct PiecesSentNotice {
    std::uint64_t number;
};
GP_MEMBERS(PiecesSentNotice, number);
// A stream by its handle; a default stream as 1 (legacy) or 2 (per-thread), with its context and thread; all zero:
// every stream. kThrottledGraphChanges: deferred changes of the executable graph whose handle is in `context`.
inline constexpr std::uint64_t kThrottledGraphChanges = 3;  // smaller than every handle
struct StreamThrottleNotice {
    std::uint64_t stream;
    std::uint64_t context;
    std::uint32_t thread;
    std::uint32_t throttled;  // 1: send no more work for it; 0: send again
};
GP_MEMBERS(StreamThrottleNotice, stream, context, thread, throttled);

// The stream is named as in StreamThrottleNotice. CUDA_SUCCESS: all work sent before the gpStreamWatch with number
// `command` is complete. Any other result: the client must query the stream to learn its state.
struct StreamCompleteNotice {
    std::uint64_t stream;
    std::uint64_t context;
    std::uint64_t command;
    std::uint32_t thread;
    std::int32_t result;
};
GP_MEMBERS(StreamCompleteNotice, stream, context, command, thread, result);

inline constexpr std::size_t kMaxRecordBytes = 256u << 10;
inline constexpr std::size_t kMaxInlineBytes = 64u << 10;  // copy data in one command
inline constexpr std::size_t kMaxBatchedCopies = 4096;     // in one command
inline constexpr std::size_t kMaxArrayElements = 1u << 20;

}  // namespace gpupool::codec
