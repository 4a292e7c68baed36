// Lowering of branches, calls, barriers and warp-wide instructions.
#include <fmt/format.h>

#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {

std::uint32_t Lowering::label(const ptx::Instruction& from, const ptx::Operand& to) const {
    const ptx::Label* found = source_.find_label(from.scope, to.name);
    if (found == nullptr || !found->targets.empty()) {
        fail(fmt::format("there is no label '{}'", to.name));
    }
    return found->instruction;
}

void Lowering::lower_bra(const ptx::Instruction& from) {
    Inst& i = emit(from.guard < 0 ? Flow::jump : Flow::branch);
    i.target = label(from, operand(from, 0));
}

void Lowering::lower_brx(const ptx::Instruction& from) {
    const ptx::Label* list = source_.find_label(from.scope, operand(from, 1).name);
    if (list == nullptr || list->targets.empty()) {
        fail("brx.idx without its .branchtargets");
    }
    std::vector<std::uint32_t> table;
    for (const auto name : list->targets) {
        const ptx::Label* found = source_.find_label(from.scope, name);
        if (found == nullptr) {
            fail(fmt::format("there is no label '{}'", name));
        }
        table.push_back(found->instruction);
    }
    const std::uint32_t a = source(operand(from, 0), Slot::bits32);
    if (from.guard >= 0) {
        unsupported();
    }
    Inst& i = emit(Flow::branch_table);
    i.a = a;
    i.extra = static_cast<std::uint32_t>(target_.tables.size());
    target_.tables.push_back(std::move(table));
}

void Lowering::call_parameters(const ptx::Operand& list, std::vector<std::uint32_t>& offsets_bytes,
                               std::vector<std::uint32_t>& sizes_bytes) const {
    for (const auto& item : list.items) {
        const bool param = item.kind == ptx::OperandKind::symbol && item.variable >= 0 &&
                           variables_[static_cast<std::size_t>(item.variable)].space == ptx::Space::param;
        if (!param) {
            fail("calls pass their parameters in .param variables");
        }
        const Placed& placed = variables_[static_cast<std::size_t>(item.variable)];
        offsets_bytes.push_back(placed.offset_bytes);
        sizes_bytes.push_back(placed.size_bytes);
    }
}

void Lowering::lower_call(const ptx::Instruction& from) {
    CallSite site;
    std::size_t at = 0;
    if (operand(from, at).kind == ptx::OperandKind::list) {
        call_parameters(from.operands[at++], site.results_bytes, site.result_sizes_bytes);
    }
    const ptx::Operand& callee = operand(from, at++);
    if (at < from.operands.size() && from.operands[at].kind == ptx::OperandKind::list) {
        call_parameters(from.operands[at++], site.arguments_bytes, site.argument_sizes_bytes);
    }
    if (callee.kind == ptx::OperandKind::reg) {
        site.pointer = source(callee, Slot::bits64);
        target_.may_recurse = true;
    } else {
        const auto found = symbols_.names.find(callee.name);
        if (found == symbols_.names.end() || found->second.kind != Symbol::function) {
            fail(fmt::format("there is no function '{}'", callee.name));
        }
        site.callee = static_cast<std::int32_t>(found->second.value);
        const CompiledFunction& function = symbols_.functions[found->second.value];
        if (!function.defined) {
            if (callee.name == "vprintf") {
                site.builtin = Builtin::vprintf;
            } else if (callee.name == "__assertfail") {
                site.builtin = Builtin::assertfail;
            } else if (callee.name == "malloc") {
                site.builtin = Builtin::malloc;
            } else if (callee.name == "free") {
                site.builtin = Builtin::free;
            } else if (callee.name.substr(0, 4) == "cuda" || callee.name.substr(0, 6) == "__cuda") {
                lack(fmt::format(
                    "'{}' is of the device runtime: kernels that start kernels (dynamic parallelism) are not "
                    "supported by the software GPU",
                    callee.name));
            } else {
                fail(fmt::format("the function '{}' is declared but not defined here", callee.name));
            }
        }
        if (function.params.size() != site.arguments_bytes.size() ||
            function.returns.size() != site.results_bytes.size()) {
            fail(fmt::format("a call of '{}' passes the wrong number of parameters", callee.name));
        }
        if (function.entry) {
            fail("a kernel cannot be called");
        }
    }
    Inst& i = emit(Flow::call);
    i.extra = static_cast<std::uint32_t>(target_.calls.size());
    target_.calls.push_back(std::move(site));
}

void Lowering::lower_ret(const ptx::Instruction&) {
    if (entry_stack_ != kNoSlot) {
        emit("stack.restore").a = entry_stack_;
    }
    emit(source_.entry ? Flow::exit : Flow::ret);
}
void Lowering::lower_exit(const ptx::Instruction&) {
    emit(Flow::exit);
}
void Lowering::lower_trap(const ptx::Instruction&) {
    emit(Flow::trap);
}

void Lowering::lower_nanosleep(const ptx::Instruction& from) {
    const std::uint32_t a = source(operand(from, 0), Slot::bits32);
    emit(Flow::pause).a = a;
}

// mapa{.shared::cluster}.type d, a, rank and getctarank{.shared::cluster}.type d, a. Addresses without a space are
// generic.
void Lowering::lower_mapa(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const bool maps = parts[0] == "mapa";
    const bool generic = parts.size() == 2;
    if (!generic && (parts.size() != 3 || parts[1] != "shared::cluster")) {
        unsupported();
    }
    const Slot kind = parts.back() == "u64" ? Slot::bits64 : Slot::bits32;
    if (generic && kind != Slot::bits64) {
        unsupported();
    }
    const std::uint32_t a = resized(source(operand(from, 1), kind), kind, Slot::bits64, false);
    const std::uint64_t window = generic ? windows().shared_base : 0;
    if (!maps) {
        const std::uint32_t d = destination(operand(from, 0), Slot::bits32);
        Inst& i = emit("shared_rank");
        i.a = a, i.d = d, i.imm = window;
        return;
    }
    const std::uint32_t rank = source(operand(from, 2), Slot::bits32);
    const std::uint32_t d = destination(operand(from, 0), kind);
    const std::uint32_t result = kind == Slot::bits64 ? d : temporary(Slot::bits64);
    Inst& i = emit("map_shared");
    i.a = a, i.b = rank, i.d = result, i.imm = window;
    if (kind == Slot::bits64) {
        return;
    }
    Inst& narrowed = emit("narrow.u64.u32");
    narrowed.a = result, narrowed.d = d;
}

// mode: 0 sync, 1 arrive, 2 red.popc, 3 red.and, 4 red.or; a: barrier, b: threads, c: predicate.
void Lowering::lower_barrier(const ptx::Instruction& from) {
    auto parts = split_opcode(from.opcode);
    if (parts.size() > 2 && parts[1] == "cluster") {
        if (parts[2] != "arrive" && parts[2] != "wait") {
            unsupported();
        }
        emit(Flow::barrier).mode = parts[2] == "arrive" ? kClusterArrive : kClusterWait;
        return;
    }
    std::vector<std::string_view> kept;
    for (const auto part : parts) {
        if (part != "cta" && part != "aligned") {
            kept.push_back(part);
        }
    }
    if (kept.size() < 2) {
        unsupported();
    }
    std::uint8_t mode = 0;
    if (kept[1] == "arrive" && kept.size() == 2) {
        mode = 1;
    } else if (kept[1] == "red" && kept.size() == 4) {
        mode = kept[2] == "popc" ? 2 : kept[2] == "and" ? 3 : 4;
    } else if (!(kept[1] == "sync" && kept.size() == 2)) {
        unsupported();
    }
    const bool reduces = mode >= 2;
    std::size_t at = reduces ? 1 : 0;
    const std::size_t inputs = from.operands.size() - at - (reduces ? 1 : 0);
    const std::uint32_t a = source(operand(from, at++), Slot::bits32);
    const std::uint32_t b = inputs > 1 ? source(operand(from, at++), Slot::bits32) : kNoSlot;
    const std::uint32_t c = reduces ? source(operand(from, at), Slot::pred) : kNoSlot;
    const std::uint32_t d = !reduces ? kNoSlot : destination(operand(from, 0), mode == 2 ? Slot::bits32 : Slot::pred);
    Inst& i = emit(Flow::barrier);
    i.a = a, i.b = b, i.c = c, i.d = d, i.mode = mode;
}

// Warp-wide instructions: sources as in the table, then the member mask, which goes to slot e.
void Lowering::lower_warp(const ptx::Instruction& from) {
    std::string name(from.opcode);
    // "vote.ballot.sync.b32" and "match.sync.any.b32" have two parts in the other order.
    const auto parts = split_opcode(from.opcode);
    if (parts.size() == 4 && parts[0] == "vote" && parts[2] == "sync") {
        name = fmt::format("vote.sync.{}.{}", parts[1], parts[3]);
    }
    if (parts.size() == 4 && parts[0] == "match" && parts[1] == "sync") {
        name = fmt::format("match.{}.sync.{}", parts[2], parts[3]);
    }
    // Before sm_70 the members are the active lanes.
    const bool old =
        target_.virtual_architecture < 70 && parts.size() == 3 && (parts[0] == "vote" || parts[0] == "shfl");
    if (old) {
        name = fmt::format("{}.sync.{}.{}", parts[0], parts[1], parts[2]);
    }
    const Op& found = op(name);
    std::uint32_t sources[3] = {kNoSlot, kNoSlot, kNoSlot};
    std::size_t at = found.d == Slot::none ? 0 : 1;
    for (std::size_t i = 0; i < 3 && found.sources[i] != Slot::none; ++i) {
        sources[i] = source(operand(from, at++), found.sources[i]);
    }
    const std::uint32_t members = old ? computed("activemask.b32", {}) : source(operand(from, at), Slot::bits32);
    std::uint32_t d = kNoSlot, second = kNoSlot;
    if (found.d != Slot::none) {
        const auto& to = operand(from, 0);
        d = destination(to, found.d);
        if (to.second >= 0) {
            second = slot_of_register(to.second);
        }
    }
    Inst& i = emit(found);
    i.a = sources[0], i.b = sources[1], i.c = sources[2], i.d = d, i.e = members, i.extra = second;
}

}  // namespace gpupool::softgpu
