// The interpreter: runs one warp's groups of lanes, and chooses which of them runs.
#include <bit>

#include "server/softgpu/exec/block_runner.h"

namespace gpupool::softgpu {
namespace {

// Iterations after which a loop yields to other groups of lanes: one that may be polling for them, and any other loop.
constexpr std::uint32_t kPollingRounds = 64;
constexpr std::uint32_t kPlainRounds = 100'000;
// Steps after such a yield in which groups are not chosen by position, so that the others make progress.
constexpr std::uint32_t kFairSteps = 512;

bool precedes(const Group& a, const Group& b) {
    if (a.frame->depth != b.frame->depth) {
        return a.frame->depth > b.frame->depth;
    }
    return a.position < b.position;
}

bool same_place(const Group& a, const Group& b) {
    return a.frame == b.frame && a.position == b.position;
}

}  // namespace

// Merges groups that wait at the current group's position into it.
void BlockRunner::absorb(Warp& w) {
    for (std::size_t i = 0; i < w.waiting.size();) {
        if (w.waiting[i].wait == Wait::none && same_place(w.waiting[i], w.current)) {
            w.current.mask |= w.waiting[i].mask;
            w.waiting[i] = w.waiting.back();
            w.waiting.pop_back();
        } else {
            ++i;
        }
    }
}

void BlockRunner::take(Warp& w, std::size_t index) {
    w.current = w.waiting[index];
    w.waiting.erase(w.waiting.begin() + static_cast<std::ptrdiff_t>(index));
    w.regs = w.current.frame->registers;
    w.spins = 0;
    absorb(w);
}

// Chooses a group if none runs. Returns false if all wait for a barrier.
bool BlockRunner::next_group(Warp& w) {
    for (int attempt = 0; attempt < 2; ++attempt) {
        std::size_t best = w.waiting.size();
        for (std::size_t i = 0; i < w.waiting.size(); ++i) {
            if (w.waiting[i].wait != Wait::none) {
                continue;
            }
            if (best == w.waiting.size() || precedes(w.waiting[i], w.waiting[best])) {
                best = i;
            }
        }
        if (best != w.waiting.size()) {
            take(w, best);
            return true;
        }
        // Lanes wait for each other at different instructions. PTX leaves the result undefined, but it must not hang. A
        // group that continues with wait_mask 0 does not wait again at this instruction.
        bool released = false;
        for (Group& group : w.waiting) {
            if (group.wait != Wait::warp_sync) {
                continue;
            }
            group.wait = Wait::none;
            group.wait_mask = kAllLanes;
            released = true;
        }
        if (!released) {
            return false;
        }
    }
    return false;
}

// Chooses the group with the lowest position after the current group moved.
void BlockRunner::reconsider(Warp& w) {
    absorb(w);
    if (w.fair_steps > 0) {
        --w.fair_steps;
        return;
    }
    std::size_t best = w.waiting.size();
    for (std::size_t i = 0; i < w.waiting.size(); ++i) {
        if (w.waiting[i].wait != Wait::none) {
            continue;
        }
        if (precedes(w.waiting[i], best == w.waiting.size() ? w.current : w.waiting[best])) {
            best = i;
        }
    }
    if (best == w.waiting.size()) {
        return;
    }
    const Group chosen = w.waiting[best];
    w.waiting[best] = w.current;
    w.current = chosen;
    w.regs = chosen.frame->registers;
    absorb(w);
}

void BlockRunner::branch(Warp& w, const Inst& i, std::uint32_t taken) {
    Group& current = w.current;
    const std::uint32_t rest = current.mask & ~taken;
    if (taken == 0) {
        ++current.position;
    } else if (rest == 0) {
        current.position = i.target;
    } else {
        Group other = current;
        other.mask = taken;
        other.position = i.target;
        w.waiting.push_back(other);
        current.mask = rest;
        ++current.position;
    }
    if (!w.waiting.empty()) {
        reconsider(w);
    }
}

void BlockRunner::branch_table(Warp& w, const Inst& i) {
    const auto& table = w.current.frame->function->tables[i.extra];
    const std::uint32_t* index = w.reg<std::uint32_t>(i.a);
    Group from = w.current;
    bool first = true;
    for (std::uint32_t rest = from.mask; rest != 0;) {
        const std::uint32_t chosen = index[std::countr_zero(rest)];
        if (chosen >= table.size()) {
            return w.raise(FaultKind::illegal_instruction, i, chosen, "brx.idx beyond its targets");
        }
        std::uint32_t same = 0;
        for (std::uint32_t lanes = rest; lanes != 0; lanes &= lanes - 1) {
            const int lane = std::countr_zero(lanes);
            if (index[lane] == chosen) {
                same |= 1U << lane;
            }
        }
        rest &= ~same;
        Group to = from;
        to.position = table[chosen];
        to.mask = same;
        if (first) {
            w.current = to;
        } else {
            w.waiting.push_back(to);
        }
        first = false;
    }
    reconsider(w);
}

// Gathers the lanes with the same member mask, which wait for each other and run together. A warp may have several such
// sets at one instruction. Returns true if the current group is a complete set; else it waits and another group runs.
bool BlockRunner::gather(Warp& w, const Inst& i) {
    const bool forced =
        w.current.wait_mask == kAllLanes && w.current.wait == Wait::none && w.current.barrier_id == i.line;
    const std::uint32_t* named = w.reg<std::uint32_t>(i.e);
    const std::uint32_t mask = named[std::countr_zero(w.exec)];
    std::uint32_t others = 0, difference = 0;
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        difference |= named[lane] ^ mask;
    }
    for (std::uint32_t rest = difference == 0 ? 0 : w.exec; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        if (named[lane] != mask) {
            others |= 1U << lane;
        }
    }
    if (others != 0) {
        Group apart = w.current;
        apart.mask = others;
        w.waiting.push_back(apart);
        w.current.mask &= ~others;
        w.exec &= ~others;
    }
    const std::uint32_t members = mask & w.alive;
    if ((members & ~w.exec) == 0 || forced) {
        return true;
    }
    for (std::size_t k = 0; k < w.waiting.size();) {
        const Group& group = w.waiting[k];
        if (group.wait == Wait::warp_sync && group.wait_mask == members && same_place(group, w.current)) {
            w.current.mask |= group.mask;
            w.waiting[k] = w.waiting.back();
            w.waiting.pop_back();
        } else {
            ++k;
        }
    }
    w.exec = w.current.mask;
    if (i.guard != kNoSlot) {
        w.exec &= i.guard_negated ? ~w.pred(i.guard) : w.pred(i.guard);
    }
    if ((members & ~w.exec) == 0) {
        return true;
    }
    Group group = w.current;
    group.wait = Wait::warp_sync;
    group.wait_mask = members;
    group.barrier_id = i.line;
    w.waiting.push_back(group);
    w.current.mask = 0;
    return false;
}

// Lanes exit: groups that wait for them are released.
void BlockRunner::leave_lanes(Warp& w, std::uint32_t lanes) {
    w.alive &= ~lanes;
    w.current.mask &= ~lanes;
    for (Frame* frame = w.current.frame; frame != nullptr;) {
        frame->lanes &= ~lanes;
        Frame* parent = frame->parent;
        if (frame->lanes == 0) {
            free_frame(frame);
        }
        frame = parent;
    }
    for (Group& group : w.waiting) {
        if (group.wait == Wait::warp_sync) {
            group.wait = Wait::none, group.wait_mask = 0;
        }
    }
    for (std::uint32_t id = 0; id < 16; ++id) {
        if (barriers_[id].arrived != 0) {
            release_if_full(id);
        }
    }
    release_cluster_if_full();
}

void BlockRunner::back_edge(Warp& w, const Inst& i) {
    if (w.waiting.empty() || ++w.spins < (i.mode != 0 ? kPollingRounds : kPlainRounds)) {
        return;
    }
    w.spins = 0;
    for (std::size_t k = 0; k < w.waiting.size(); ++k) {
        if (w.waiting[k].wait != Wait::none) {
            continue;
        }
        // The first in the list has waited longest. The current group goes to the end.
        w.waiting.push_back(w.current);
        take(w, k);
        w.fair_steps = kFairSteps;
        return;
    }
    // All other groups wait at a warp-wide instruction, so there is nothing to switch to.
}

BlockRunner::WarpEnd BlockRunner::run_warp(Warp& w, std::uint32_t steps) {
    for (;;) {
        const Inst* code = w.current.frame->function->code.data();
        const Inst& i = code[w.current.position];
        w.exec = w.current.mask;
        if (i.guard != kNoSlot) {
            const std::uint32_t p = w.pred(i.guard);
            w.exec &= i.guard_negated ? ~p : p;
            if (w.exec == 0 && i.flow != Flow::branch) {
                ++w.current.position;
                continue;
            }
        }
        switch (i.flow) {
            case Flow::plain:
                i.fn(w, i);
                ++w.current.position;
                continue;
            case Flow::checked:
                i.fn(w, i);
                if (w.fault.kind != FaultKind::none) {
                    return WarpEnd::faulted;
                }
                ++w.current.position;
                continue;
            case Flow::warp_sync:
                if (gather(w, i)) {
                    i.fn(w, i);
                    w.current.wait_mask = 0;
                    ++w.current.position;
                }
                break;
            case Flow::join:
                ++w.current.position;
                if (!w.waiting.empty()) {
                    reconsider(w);
                }
                continue;
            case Flow::jump:
                w.current.position = i.target;
                if (i.back_edge) {
                    back_edge(w, i);
                    if (--steps == 0) {
                        return WarpEnd::slice_over;
                    }
                }
                if (!w.waiting.empty()) {
                    reconsider(w);
                }
                continue;
            case Flow::branch: branch(w, i, w.exec); continue;
            case Flow::branch_table: branch_table(w, i); break;
            case Flow::call:
                if (!call(w, i, w.exec)) {
                    break;
                }
                if (--steps == 0) {
                    return WarpEnd::slice_over;
                }
                break;
            case Flow::ret: ret(w, w.exec); break;
            case Flow::exit:
                ++w.current.position;
                leave_lanes(w, w.exec);
                break;
            case Flow::barrier:
                ++w.current.position;
                if (i.mode >= kClusterArrive) {
                    i.mode == kClusterArrive ? arrive_at_cluster(w) : wait_for_cluster(w);
                } else {
                    arrive(w, i);
                }
                break;
            case Flow::pause:
                ++w.current.position;
                paused_ = true;
                return WarpEnd::slice_over;
            case Flow::trap: w.raise(FaultKind::trap, i, 0, "the program executed trap"); break;
        }
        if (w.fault.kind != FaultKind::none) {
            return WarpEnd::faulted;
        }
        if (w.current.mask == 0) {
            if (w.alive == 0) {
                return WarpEnd::finished;
            }
            if (!next_group(w)) {
                return WarpEnd::blocked;
            }
        } else if (!w.waiting.empty()) {
            reconsider(w);
        }
    }
}

}  // namespace gpupool::softgpu
