// A running warp: its lanes' registers, and the position of each group of lanes.
//
// Divergence: lanes at the same instruction of the same frame form a group. One group runs, the others wait. Blocks of
// code are ordered such that the group with the lowest position must run next (deepest call first). So every group
// arrives at a point where paths join before any group continues from it: lanes reconverge at the immediate
// post-dominator without a stack. A group that spins can be suspended in favour of one that it may be waiting for.
//
// Ownership: a BlockRunner owns its warps and their frames. Threads: one thread runs a block.
// Errors: an instruction that faults records it in `fault`, and the run stops.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/exec/code.h"

namespace gpupool::softgpu {

class BlockRunner;

struct Frame {
    const CompiledFunction* function = nullptr;
    Frame* parent = nullptr;
    std::uint8_t* registers = nullptr;
    std::uint32_t return_index = 0;  // instruction in the parent frame
    std::uint32_t lanes = 0;         // lanes that have not returned
    std::uint32_t depth = 0;
    std::uint32_t local_base_bytes = 0;
    std::int32_t call_site = -1;
};

enum class Wait : std::uint8_t { none, warp_sync, barrier };

struct Group {
    Frame* frame = nullptr;
    std::uint32_t position = 0;  // instruction index
    std::uint32_t mask = 0;
    Wait wait = Wait::none;
    std::uint32_t wait_mask = 0;   // of warp_sync: the lanes that it waits for
    std::uint32_t barrier_id = 0;  // of a barrier
};

// Why a kernel failed. The api folder translates it to a CUresult.
enum class FaultKind : std::uint8_t {
    none,
    illegal_address,
    misaligned_address,
    illegal_instruction,
    stack_overflow,
    assertion,
    trap,
    deadlock,
    out_of_memory,
    timeout,
    stopped,
};

struct Fault {
    FaultKind kind = FaultKind::none;
    std::uint64_t address = 0;
    std::uint32_t line = 0;
    const char* detail = "";
};

// State that all blocks of a launch share; read only while it runs.
struct LaunchState {
    const CompiledFunction* entry = nullptr;
    const std::vector<CompiledFunction>* functions = nullptr;
    const std::uint8_t* params = nullptr;
    std::uint32_t grid[3] = {1, 1, 1};
    std::uint32_t block[3] = {1, 1, 1};
    std::uint32_t cluster[3] = {1, 1, 1};  // blocks
    std::uint32_t dynamic_shared_bytes = 0;
    std::uint32_t local_bytes_per_lane = 0;
    std::uint64_t grid_id = 0;
    std::uint64_t grid_workspace = 0;  // only for a cooperative launch
    std::uint32_t sm_count = 1;
    std::uint32_t texture_generation = 0;         // generation of the texture table at launch
    const std::uint64_t* references = nullptr;    // objects of the module's texture and surface references
    std::uint64_t device = ~std::uint64_t{0};     // bit of the device
    std::uint64_t reachable = ~std::uint64_t{0};  // bits of the devices that it can access as a peer
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

struct Warp {
    std::uint8_t* regs = nullptr;              // registers of the running group's frame
    std::uint32_t exec = 0;                    // lanes that the current instruction acts on
    std::uint32_t carry = 0;                   // CC.CF, one bit per lane
    std::uint32_t stack_top[kLaneCount] = {};  // per lane: end of local memory that alloca has not taken
    Group current;
    std::vector<Group> waiting;
    std::uint32_t alive = 0;
    std::uint32_t index = 0;
    std::uint32_t lane_limit = 0;  // number of lanes; the last warp may be partial
    const LaunchState* launch = nullptr;
    BlockRunner* block = nullptr;
    std::uint8_t* shared = nullptr;
    std::uint32_t shared_bytes = 0;
    std::uint8_t* local = nullptr;
    std::uint32_t local_stride_bytes = 0;
    std::uint32_t block_index[3] = {0, 0, 0};
    std::uint8_t* const* peer_shared = nullptr;  // shared memory of the cluster's blocks, by rank; null: single block
    std::uint32_t cluster_rank = 0;
    std::uint32_t cluster_blocks = 1;
    std::uint32_t cluster_parity = 0;  // parity of the cluster's barrier when each lane arrived
    std::uint32_t thread_index[3][kLaneCount] = {};
    std::uint32_t executor = 0;  // value of %smid
    Fault fault;
    RangeCache range;
    TextureCache textures;
    std::uint32_t spins = 0;       // back edges taken by the running group while others could run
    std::uint32_t fair_steps = 0;  // while positive, groups are not chosen by position

    template <class T>
    [[gnu::always_inline]] T* reg(std::uint32_t slot) const noexcept {
        return reinterpret_cast<T*>(regs + slot);
    }
    [[gnu::always_inline]] std::uint32_t& pred(std::uint32_t slot) const noexcept {
        return *reinterpret_cast<std::uint32_t*>(regs + slot);
    }
    void raise(FaultKind kind, const Inst& at, std::uint64_t address = 0, const char* detail = "") noexcept {
        if (fault.kind == FaultKind::none) {
            fault = {kind, address, at.line, detail};
        }
    }
};

}  // namespace gpupool::softgpu
