// The internal form of PTX: pre-decoded instructions over register slots.
//
// A register slot contains one value per lane, 32 values side by side, so that an instruction is one loop over two or
// three arrays. Slots are byte offsets into a frame. Immediates are slots too, filled when a frame is made. A predicate
// is a 32-bit mask.
//
// Ownership: a CompiledModule owns all of its code. The code is immutable once built and outlives the launches that use
//   it.
// Threads: shared, read only. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/softgpu/exec/matrix.h"
#include "server/softgpu/exec/texture.h"

namespace gpupool::softgpu {

struct Warp;
struct Inst;

constexpr std::uint32_t kLaneCount = 32;
constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr std::uint32_t kNoSlot = 0xFFFFFFFFU;

using OpFn = void (*)(Warp&, const Inst&);

// How the interpreter executes an instruction.
enum class Flow : std::uint8_t {
    plain,         // run fn and continue
    checked,       // run fn, stop if it raised a fault
    warp_sync,     // wait for the lanes in slot `e`, then run fn
    join,          // end of a block that falls through to the next
    jump,          // unconditional
    branch,        // by guard
    branch_table,  // brx.idx: slot a, table `extra`
    call,          // call site `extra`
    ret,
    exit,
    barrier,  // bar.sync / bar.arrive / bar.red
    pause,    // nanosleep: yield
    trap,
};

struct Inst {
    OpFn fn = nullptr;
    std::uint64_t imm = 0;
    std::uint32_t d = kNoSlot, a = kNoSlot, b = kNoSlot, c = kNoSlot;
    std::uint32_t e = kNoSlot;      // a second destination, or a fourth source
    std::uint32_t guard = kNoSlot;  // predicate slot
    std::uint32_t target = 0;       // instruction index; for a matrix instruction: its form
    std::uint32_t extra = 0;        // meaning depends on the instruction
    std::uint32_t line = 0;         // line of the PTX text
    Flow flow = Flow::plain;
    bool guard_negated = false;
    bool back_edge = false;  // the latch of a loop, where other groups may get to run
    std::uint8_t mode = 0;   // meaning depends on the instruction
    std::uint8_t lists = 0;  // which of d and b are indices into `aux` instead of slots
};

// Inst::mode of the barriers of a cluster. Smaller values are barriers of a block (lower_barrier).
constexpr std::uint8_t kClusterArrive = 5;
constexpr std::uint8_t kClusterWait = 6;

constexpr std::uint8_t kListAtD = 1;
constexpr std::uint8_t kListAtB = 2;

enum class Builtin : std::uint8_t { none, vprintf, assertfail, malloc, free };

struct CallSite {
    std::int32_t callee = -1;  // index into CompiledModule::functions; -1: indirect, through slot `pointer`
    Builtin builtin = Builtin::none;
    std::uint32_t pointer = kNoSlot;
    std::vector<std::uint32_t> arguments_bytes;  // offsets in the caller's parameter area
    std::vector<std::uint32_t> argument_sizes_bytes;
    std::vector<std::uint32_t> results_bytes;
    std::vector<std::uint32_t> result_sizes_bytes;
};

struct ParamInfo {
    std::uint32_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
    bool local =
        false;  // of a function that takes the parameter's address: in the frame's local memory instead of its area
};

struct CompiledFunction {
    std::string name;
    bool entry = false;
    bool defined = false;
    std::string refusal;  // not empty: the function or its callees need something that the software GPU lacks; says
                          // what and where
    std::uint32_t index = 0;
    std::vector<Inst> code;
    std::vector<std::uint32_t> aux;                  // slots of vector operands
    std::vector<std::vector<std::uint32_t>> tables;  // branch tables: instruction indices
    std::vector<CallSite> calls;
    std::vector<TextureAccess> textures;
    std::vector<MatrixForm> matrices;

    std::vector<std::uint8_t> constants;  // the first bytes of each frame
    std::uint32_t register_bytes = 0;     // including constants
    std::uint32_t area_stride_bytes = 0;  // bytes per lane of parameter areas, which follow the registers
    std::uint32_t local_bytes = 0;        // bytes per lane of .local variables

    std::vector<ParamInfo>
        params;  // of an entry: in the launch's parameter buffer; of a function: in its parameter area
    std::vector<ParamInfo> returns;  // in the parameter area
    std::uint32_t param_bytes = 0;
    std::uint32_t shared_bytes = 0;  // static shared memory, including that of callees
    std::uint32_t max_threads = 1024;
    std::uint32_t max_registers = 255;
    std::uint32_t required_threads[3] = {0, 0, 0};
    std::uint32_t required_cluster[3] = {0, 0, 0};  // zero: as launched
    std::uint32_t virtual_architecture = 0;         // 75 for .target sm_75
    std::uint32_t register_count = 0;               // a plausible value for what ptxas would report
    std::uint32_t constant_bytes = 0;               // of its module's constant variables
    std::uint32_t stack_bytes = 0;                  // minimum of local memory per lane that a launch needs
    bool may_recurse = false;
    bool uses_reserved_shared = false;  // reads %reserved_smem_offset_*: scratch memory behind its shared memory

    std::uint32_t frame_bytes() const noexcept { return register_bytes + area_stride_bytes * kLaneCount; }
};

// Cooperative groups keep data in shared memory that the driver reserves.
constexpr std::uint32_t kReservedSharedBytes = 1024;

// The shared memories of a cluster in one 32-bit address space: a block's own begins at zero; that of rank r also at (r
// + 1) << kPeerSharedShift.
constexpr std::uint32_t kPeerSharedShift = 19;
constexpr std::uint32_t kMaxClusterBlocks = 16;

// `extern __shared__` arrays follow an entry's static shared memory.
[[gnu::always_inline]] inline std::uint32_t dynamic_shared_offset_bytes(const CompiledFunction& entry) noexcept {
    return (entry.shared_bytes + 15) & ~15U;
}

}  // namespace gpupool::softgpu
