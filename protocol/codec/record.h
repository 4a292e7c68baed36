// Records: what `commands` and `replies` frames are made of.
//
// A record is a fixed header and a body, a multiple of 8 bytes together. Both ends have the same byte order and ABI
// (x86-64 Linux). The headers belong to the protocol version (session.capnp); calls and notices are agreed on one by
// one (agreement.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::codec {

inline constexpr std::size_t kAlignment = 8;
constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) & ~(kAlignment - 1);
}

enum CommandFlags : std::uint16_t {
    kReplyWanted = 1,
    kPerThreadDefaultStream = 2,  // NULL streams mean the calling thread's
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
static_assert(sizeof(CommandHeader) == 32 && std::is_trivially_copyable_v<CommandHeader>);

enum class ReplyKind : std::uint16_t {
    result = 0,  // answers a command: `result`, then outputs
    notice = 1,  // unasked: Notice
};

struct ReplyHeader {
    std::uint32_t bytes;
    std::uint16_t opcode;  // of the command; for a notice, the NoticeType
    ReplyKind kind;
    std::uint64_t number;         // of the command
    std::int32_t result;          // CUresult
    std::int32_t deferred;        // CUresult of an earlier deferred call that this call reports, or 0
    std::uint32_t thread;         // of the command
    std::uint32_t other_context;  // 1: it failed in another context than the command was sent in
};
static_assert(sizeof(ReplyHeader) == 32 && std::is_trivially_copyable_v<ReplyHeader>);

// Notices: what a worker says without being asked. layout.cpp pins numbers and sizes.
enum class NoticeType : std::uint16_t {
    pull = 1,              // PullNotice: send this part of a transfer now
    host_function = 2,     // HostFunctionNotice: run it, then say gpHostFunctionDone
    deferred_error = 3,    // DeferredErrorNotice: a deferred call failed
    hold = 4,              // StreamHoldNotice: a stream has too much outstanding, or has caught up
    output = 5,            // what kernels printed: 8 bytes of length, then the text
    transfer_failed = 6,   // TransferFailedNotice: no more of it will be asked for or sent
    graph_function = 7,    // GraphFunctionNotice: as host_function, for a graph's node
    graph_upload = 8,      // GraphCopyNotice: send this host memory as bulk data of the transfer, in pieces
    graph_download = 9,    // GraphCopyNotice: the transfer's bulk data goes to this host memory
    errors = 10,           // as output, of standard error: failed assertions
    host_memory = 11,      // what the GPU wrote to mapped host memory: a record of memory_changes.h
    event_complete = 12,   // EventCompleteNotice: a record that gpEventWatch asked about has ended
    pieces_sent = 13,      // PiecesSentNotice: what follows is not acted on before they have landed
    ended = 14,            // the last: why the server has ended the session, 8 bytes of length, then the text
    ahead_taken = 15,      // AheadTakenNotice: what was sent ahead of this transfer takes no room any more
    slab_prepared = 16,    // SlabPreparedNotice: what came of gpSlabPrepare
    stream_complete = 17,  // StreamCompleteNotice: what gpStreamWatch asked about
    trace_records = 20,    // TraceHeader, then TraceRecords (trace_records.h)
    trace_name = 21        // TraceName, then the text
};

// To be raised when a notice comes to mean something else while its layout stays: `case NoticeType::hold: return 2;`.
constexpr std::uint16_t behaviour_of(NoticeType type) {
    switch (type) {
        default: return 1;
    }
}

struct PullNotice {
    std::uint64_t transfer, offset, bytes;
};
struct TransferFailedNotice {
    std::uint64_t transfer;
};
struct AheadTakenNotice {
    std::uint64_t transfer;
};
struct SlabPreparedNotice {
    std::uint64_t address;
    std::int32_t result;
    std::uint32_t reserved;
};
struct HostFunctionNotice {
    std::uint64_t ticket;
    std::int32_t status;  // CUresult for cuStreamAddCallback's function
    std::uint32_t reserved;
};
struct GraphFunctionNotice {
    std::uint64_t ticket;    // for gpHostFunctionDone
    std::uint64_t function;  // as the client named it; 0: none, only the answer is wanted, behind what was sent before
};
// The part of named host memory that a graph's copy reads or writes; its data travels packed.
struct GraphCopyNotice {
    std::uint64_t transfer;  // minted by the worker
    std::uint64_t memory;    // host_memory_number()
    std::uint64_t x_bytes, y, z, pitch_bytes, height;
    std::uint64_t width_bytes, rows, slices;
};
inline constexpr std::uint64_t kTransferOfWorker = 1ull << 63;
// Bits of a transfer's name. Sent ahead: pieces of it may come before the worker has asked for them, of all such
// transfers together no more than kMaxAheadBytes that it has not said to have taken (AheadTakenNotice,
// TransferFailedNotice).
inline constexpr std::uint64_t kTransferSentAhead = 1ull << 62;
inline constexpr std::size_t kAheadPieceBytes = 1u << 20;
inline constexpr std::uint64_t kMaxAheadBytes = 32u << 20;
inline constexpr std::size_t kGraphPieceBytes = 1u << 20;
// Of copies between graphs and the client's memory that are under way at one time, in a session.
inline constexpr std::uint64_t kMaxGraphCopyBytes = 4ull << 30;

struct DeferredErrorNotice {
    std::uint64_t number;   // of the command
    std::uint64_t context;  // that it failed in
    std::int32_t result;
    std::uint16_t opcode;
    std::uint16_t reserved;
};
struct EventCompleteNotice {
    std::uint64_t event, record;
    std::int32_t result;
    std::uint32_t reserved;
};
// Bulk data that went over other connections of the session: all pieces up to this number (protocol/wire/lanes.h).
struct PiecesSentNotice {
    std::uint64_t number;
};
// A stream by its handle; a default stream as 1 (legacy) or 2, with its context and thread; all zero: every stream.
// kHoldsGraphChanges: no stream, but changes that nobody waits for of the executable graph that stands for the context.
inline constexpr std::uint64_t kHoldsGraphChanges = 3;  // no handle is so small
struct StreamHoldNotice {
    std::uint64_t stream;
    std::uint64_t context;
    std::uint32_t thread;
    std::uint32_t held;  // 1: do not send more work for it, 0: go on
};

// Named as there. All that came before the gpStreamWatch of that number is complete, or (any other result) only a call
// can say why not.
struct StreamCompleteNotice {
    std::uint64_t stream;
    std::uint64_t context;
    std::uint64_t command;
    std::uint32_t thread;
    std::int32_t result;
};

inline constexpr std::size_t kMaxRecordBytes = 256u << 10;
inline constexpr std::size_t kMaxInlineBytes = 64u << 10;  // of copy data in a command
inline constexpr std::size_t kMaxArrayElements = 1u << 20;

}  // namespace gpupool::codec
