#include "server/softgpu/exec/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "common/round_up.h"

namespace gpupool::softgpu {
namespace {

std::uint8_t* allocate(std::size_t bytes) {
    const std::size_t rounded = round_up(bytes, 64);
    auto* memory = static_cast<std::uint8_t*>(std::aligned_alloc(64, rounded == 0 ? 64 : rounded));
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

// Group::barrier_id of groups that wait for the cluster's barrier.
constexpr std::uint32_t kClusterBarrier = 16;

}  // namespace

void BlockRunner::FreeFunction::operator()(void* memory) const noexcept {
    std::free(memory);
}

BlockRunner::BlockRunner(const LaunchState& launch, std::uint32_t executor) : launch_(launch), executor_(executor) {
    thread_count_ = launch.block[0] * launch.block[1] * launch.block[2];
    const std::uint32_t warps = (thread_count_ + kLaneCount - 1) / kLaneCount;
    shared_bytes_ = dynamic_shared_offset_bytes(*launch.entry) + launch.dynamic_shared_bytes;
    if (launch.entry->uses_reserved_shared) {
        shared_bytes_ = (shared_bytes_ + 15) / 16 * 16 + kReservedSharedBytes;
    }
    shared_.reset(allocate(shared_bytes_));
    const std::uint32_t stride = launch.local_bytes_per_lane;
    // Not cleared, since untouched pages of local memory cost nothing.
    local_.reset(allocate(std::size_t{stride} * kLaneCount * warps));
    warps_.resize(warps);
    for (std::uint32_t index = 0; index < warps; ++index) {
        Warp& w = warps_[index];
        w.index = index;
        w.launch = &launch_;
        w.block = this;
        w.executor = executor_;
        w.shared = shared_.get();
        w.shared_bytes = shared_bytes_;
        w.local = local_.get() + std::size_t{stride} * kLaneCount * index;
        w.local_stride_bytes = stride;
        const std::uint32_t left = thread_count_ - index * kLaneCount;
        w.lane_limit = left >= kLaneCount ? kAllLanes : (1U << left) - 1;
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            const std::uint32_t thread = index * kLaneCount + lane;
            w.thread_index[0][lane] = thread % launch.block[0];
            w.thread_index[1][lane] = thread / launch.block[0] % launch.block[1];
            w.thread_index[2][lane] = thread / launch.block[0] / launch.block[1];
        }
    }
}

BlockRunner::~BlockRunner() = default;

void BlockRunner::run_on(std::uint32_t processor) {
    for (Warp& w : warps_) {
        w.executor = processor;
    }
}

void BlockRunner::join(Cluster& cluster, std::uint32_t rank) {
    cluster_ = &cluster;
    for (Warp& w : warps_) {
        w.peer_shared = cluster.shared.data();
        w.cluster_rank = rank;
        w.cluster_blocks = static_cast<std::uint32_t>(cluster.blocks.size());
    }
}

void BlockRunner::begin(const std::uint32_t (&index)[3]) {
    fault_ = {};
    std::memset(shared_.get(), 0, shared_bytes_);
    for (auto& barrier : barriers_) {
        barrier = {};
    }
    for (Warp& w : warps_) {
        std::copy(index, index + 3, w.block_index);
        w.alive = w.lane_limit;
        w.waiting.clear();
        w.fault = {};
        w.carry = 0;
        std::fill_n(w.stack_top, kLaneCount, w.local_stride_bytes);
        w.spins = w.fair_steps = 0;
        Frame* frame = new_frame(*launch_.entry, nullptr);
        frame->lanes = w.alive;
        w.current = {frame, 0, w.alive, Wait::none, 0, 0};
        w.regs = frame->registers;
    }
}

Progress BlockRunner::run(std::uint32_t steps, bool& paused) {
    bool unfinished = false, ran = false, blocked = false;
    paused_ = false;
    for (Warp& w : warps_) {
        if (w.alive == 0) {
            continue;
        }
        if (w.current.mask == 0 && !next_group(w)) {
            unfinished = blocked = true;
            continue;
        }
        ran = true;
        const WarpEnd end = run_warp(w, steps);
        if (end == WarpEnd::faulted) {
            fault_ = w.fault;
            return Progress::faulted;
        }
        unfinished |= end != WarpEnd::finished;
    }
    if (!unfinished) {
        return Progress::finished;
    }
    if (!ran && blocked) {
        for (const Warp& w : warps_) {
            for (const Group& group : w.waiting) {
                if (group.wait == Wait::barrier && group.barrier_id == kClusterBarrier) {
                    return Progress::waiting;
                }
            }
        }
        // All threads wait at barriers that cannot complete.
        fault_ = {FaultKind::deadlock, 0, 0, "every thread of a block waits at a barrier that can never complete"};
        for (const Warp& w : warps_) {
            if (!w.waiting.empty()) {
                fault_.line = w.waiting[0].frame->function->code[w.waiting[0].position - 1].line;
            }
        }
        return Progress::faulted;
    }
    paused = paused_;
    return Progress::unfinished;
}

Frame* BlockRunner::new_frame(const CompiledFunction& function, Frame* parent) {
    auto& pool = free_frames_[&function];
    Frame* frame;
    if (!pool.empty()) {
        frame = pool.back();
        pool.pop_back();
    } else {
        frame_memory_.emplace_back(allocate(function.frame_bytes()));
        frames_.push_back(std::make_unique<Frame>());
        frame = frames_.back().get();
        frame->function = &function;
        frame->registers = frame_memory_.back().get();
        // PTX leaves registers undefined. Clear them, so that no earlier contents leak.
        std::memset(frame->registers, 0, function.frame_bytes());
        if (!function.constants.empty()) {
            std::memcpy(frame->registers, function.constants.data(), function.constants.size());
        }
    }
    frame->parent = parent;
    frame->depth = parent == nullptr ? 0 : parent->depth + 1;
    frame->local_base_bytes = parent == nullptr ? 0 : parent->local_base_bytes + parent->function->local_bytes;
    return frame;
}

void BlockRunner::free_frame(Frame* frame) {
    free_frames_[frame->function].push_back(frame);
}

std::uint32_t BlockRunner::alive_threads() const noexcept {
    std::uint32_t result = 0;
    for (const Warp& w : warps_) {
        result += static_cast<std::uint32_t>(std::popcount(w.alive));
    }
    return result;
}

// The current group arrives at a barrier. It continues at once, or when the barrier is full.
void BlockRunner::arrive(Warp& w, const Inst& i) {
    const auto first = static_cast<std::uint32_t>(std::countr_zero(w.exec));
    const std::uint32_t id = w.reg<std::uint32_t>(i.a)[first];
    if (id >= 16) {
        return w.raise(FaultKind::illegal_instruction, i, id, "a block has barriers 0 to 15");
    }
    Barrier& barrier = barriers_[id];
    if (i.b != kNoSlot) {
        const std::uint32_t expected = w.reg<std::uint32_t>(i.b)[first];
        if (expected == 0 || expected % kLaneCount != 0 || expected > 1024) {
            return w.raise(FaultKind::illegal_instruction, i, expected,
                           "a barrier's thread count must be a multiple of 32");
        }
        barrier.expected = expected;
    }
    // With a thread count, arrivals count in whole warps: a partial warp counts as a full one.
    const bool whole = w.exec == w.alive;
    barrier.arrived += i.b != kNoSlot && whole ? kLaneCount : static_cast<std::uint32_t>(std::popcount(w.exec));
    if (i.c != kNoSlot) {
        const std::uint32_t yes = w.pred(i.c) & w.exec;
        barrier.counted += static_cast<std::uint32_t>(std::popcount(yes));
        barrier.all &= yes == w.exec;
        barrier.any |= yes != 0;
    }
    if (i.mode != 1) {
        Group group = w.current;
        group.mask = w.exec;
        group.wait = Wait::barrier;
        group.barrier_id = id;
        w.waiting.push_back(group);
        w.current.mask &= ~w.exec;
    }
    release_if_full(id);
}

void BlockRunner::arrive_at_cluster(Warp& w) {
    w.cluster_parity = (w.cluster_parity & ~w.exec) | (cluster_->parity ? w.exec : 0);
    cluster_->arrived += static_cast<std::uint32_t>(std::popcount(w.exec));
    release_cluster_if_full();
}

void BlockRunner::wait_for_cluster(Warp& w) {
    const std::uint32_t early = w.exec & ~(w.cluster_parity ^ (cluster_->parity ? kAllLanes : 0));
    if (early == 0) {
        return;
    }
    Group group = w.current;
    group.mask = early;
    group.wait = Wait::barrier;
    group.barrier_id = kClusterBarrier;
    w.waiting.push_back(group);
    w.current.mask &= ~early;
}

void BlockRunner::release_cluster_if_full() {
    if (cluster_->arrived == 0) {
        return;
    }
    std::uint32_t alive = 0;
    for (const BlockRunner* block : cluster_->blocks) {
        alive += block->alive_threads();
    }
    if (cluster_->arrived < alive) {
        return;
    }
    cluster_->arrived = 0;
    cluster_->parity = !cluster_->parity;
    for (BlockRunner* block : cluster_->blocks) {
        for (Warp& w : block->warps_) {
            for (Group& group : w.waiting) {
                if (group.wait == Wait::barrier && group.barrier_id == kClusterBarrier) {
                    group.wait = Wait::none;
                }
            }
        }
    }
}

void BlockRunner::release_if_full(std::uint32_t id) {
    Barrier& barrier = barriers_[id];
    const std::uint32_t expected = barrier.expected != 0 ? barrier.expected : alive_threads();
    if (barrier.arrived != 0 && barrier.arrived >= expected) {
        release(id);
    }
}

void BlockRunner::release(std::uint32_t id) {
    const Barrier barrier = barriers_[id];
    barriers_[id] = {};
    for (Warp& w : warps_) {
        for (Group& group : w.waiting) {
            if (group.wait != Wait::barrier || group.barrier_id != id) {
                continue;
            }
            const Inst& i = group.frame->function->code[group.position - 1];
            std::uint8_t* registers = group.frame->registers;
            if (i.mode == 2) {
                auto* d = reinterpret_cast<std::uint32_t*>(registers + i.d);
                for (std::uint32_t rest = group.mask; rest != 0; rest &= rest - 1) {
                    d[std::countr_zero(rest)] = barrier.counted;
                }
            } else if (i.mode >= 3) {
                auto& d = *reinterpret_cast<std::uint32_t*>(registers + i.d);
                const bool value = i.mode == 3 ? barrier.all : barrier.any;
                d = (d & ~group.mask) | (value ? group.mask : 0);
            }
            group.wait = Wait::none;
        }
    }
}

}  // namespace gpupool::softgpu
