// Lowering of instructions that are composed of simpler ones: modifiers of half precision, three-input logic with a
// predicate, alloca's stack, and video instructions.
#include <fmt/format.h>

#include "server/softgpu/exec/convert_mode.h"
#include "server/softgpu/exec/lower.h"
#include "server/softgpu/exec/video_form.h"

namespace gpupool::softgpu {
namespace {

bool is_half_type(std::string_view type) {
    return type == "f16" || type == "bf16" || type == "f16x2" || type == "bf16x2";
}

}  // namespace

std::uint32_t Lowering::computed(std::string_view name, std::initializer_list<std::uint32_t> sources) {
    const Op& found = op(name);
    const std::uint32_t result = temporary(found.d);
    Inst& i = emit(found);
    std::uint32_t* slots[] = {&i.a, &i.b, &i.c};
    std::size_t next = 0;
    for (const auto slot : sources) {
        *slots[next++] = slot;
    }
    i.d = result;
    return result;
}

// Lowers "fma.rn.ftz.relu.f16x2" to the table's "fma.rn.ftz.f16x2", or else to its "fma.rn.f16x2", and applies the
// remaining modifiers to inputs and result.
bool Lowering::lower_half(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const std::string type(parts.back());
    if (parts.size() < 3 || !is_half_type(type)) {
        return false;
    }
    bool flush = false, saturate = false, relu = false, xorsign = false;
    std::string plain(parts[0]), flushed(parts[0]);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        if (parts[i] == "sat") {
            saturate = true;
        } else if (parts[i] == "relu") {
            relu = true;
        } else if (parts[i] == "xorsign") {
            xorsign = true;
        } else if (parts[i] != "abs") {
            flushed += fmt::format(".{}", parts[i]);
            if (parts[i] == "ftz") {
                flush = true;
            } else {
                plain += fmt::format(".{}", parts[i]);
            }
        }
    }
    if (flush && op_table().find(flushed) != nullptr) {
        plain = flushed;
        flush = false;
    }
    const Op* found = op_table().find(plain);
    if (found == nullptr || found->flow != Flow::plain) {
        return false;
    }
    std::vector<std::uint32_t> sources;
    for (std::size_t k = 0; k < 3 && found->sources[k] != Slot::none; ++k) {
        std::uint32_t slot = source(operand(from, k + 1), found->sources[k]);
        if (flush) {
            slot = computed("flush." + type, {slot});
        }
        sources.push_back(slot);
    }
    const std::uint32_t d = destination(operand(from, 0), found->d);
    std::uint32_t result;
    if (xorsign) {
        if (sources.size() != 2) {
            return false;
        }
        const std::uint32_t a = computed("abs." + type, {sources[0]});
        const std::uint32_t b = computed("abs." + type, {sources[1]});
        const std::uint32_t chosen = computed(plain, {a, b});
        result = computed("xorsign." + type, {chosen, sources[0], sources[1]});
    } else if (sources.size() == 1) {
        result = computed(plain, {sources[0]});
    } else if (sources.size() == 2) {
        result = computed(plain, {sources[0], sources[1]});
    } else {
        result = computed(plain, {sources[0], sources[1], sources[2]});
    }
    if (flush) {
        result = computed("flush." + type, {result});
    }
    if (saturate) {
        result = computed("saturate." + type, {result});
    }
    if (relu) {
        result = computed("relu." + type, {result});
    }
    Inst& i = emit(found->d == Slot::bits16 ? "mov.b16" : "mov.b32");
    i.a = result, i.d = d;
    return true;
}

// lop3{.or,.and}.b32 d|p, a, b, c, table, q: the predicate is whether any bit is set, combined with q.
void Lowering::lower_lop3(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() == 2) {
        return from_table(from, op(from.opcode));
    }
    if (parts.size() != 3 || (parts[1] != "or" && parts[1] != "and")) {
        unsupported();
    }
    const Op& lop3 = op("lop3.b32");
    std::uint32_t sources[4];
    for (std::size_t k = 0; k < 4; ++k) {
        sources[k] = source(operand(from, k + 1), Slot::bits32);
    }
    const std::uint32_t q = source(operand(from, 5), Slot::pred);
    const auto& to = operand(from, 0);
    const std::uint32_t d = destination(to, Slot::bits32);
    const std::uint32_t result = temporary(Slot::bits32);
    const std::uint32_t zero = constant(Slot::bits32, 0);
    Inst& logic = emit(lop3);
    logic.a = sources[0], logic.b = sources[1], logic.c = sources[2], logic.e = sources[3], logic.d = result;
    if (to.second >= 0) {
        const std::uint32_t p = slot_of_register(to.second);
        Inst& test = emit("setp.ne.b32");
        test.a = result, test.b = zero, test.c = q, test.d = p, test.mode = parts[1] == "and" ? 1 : 2;
    }
    Inst& move = emit("mov.b32");
    move.a = result, move.d = d;
}

// alloca takes memory from the upper end of the thread's local memory; frames grow from the lower end. It is released
// when the function returns.
void Lowering::lower_alloca(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() != 2 || (parts[1] != "u64" && parts[1] != "u32")) {
        unsupported();
    }
    const Slot kind = parts[1] == "u64" ? Slot::bits64 : Slot::bits32;
    if (parts[0] == "stackrestore") {
        std::uint32_t a = resized(source(operand(from, 0), kind), kind, Slot::bits64, false);
        emit("stack.restore").a = a;
        return;
    }
    const bool takes = parts[0] == "alloca";
    std::uint64_t alignment = 8;
    std::uint32_t size = kNoSlot;
    if (takes) {
        size = resized(source(operand(from, 1), kind), kind, Slot::bits64, false);
        if (from.operands.size() > 2) {
            alignment = static_cast<std::uint64_t>(from.operands[2].value);
        }
        if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 4096) {
            fail("alloca of a bad alignment");
        }
    }
    const std::uint32_t d = destination(operand(from, 0), kind);
    const bool narrow = kind == Slot::bits32;
    const std::uint32_t result = narrow ? temporary(Slot::bits64) : d;
    Inst& i = emit(takes ? "stack.take" : "stack.save");
    i.a = size, i.d = result, i.imm = alignment;
    if (!narrow) {
        return;
    }
    Inst& narrowed = emit("narrow.u64.u32");
    narrowed.a = result, narrowed.d = d;
}

// vadd, vadd2, vadd4 and similar: {op}{2,4}.dtype.atype.btype{.sat}{.secondary} d{.merge}, a{.select}, b{.select}, c
void Lowering::lower_video(const ptx::Instruction& from) {
    VideoForm form;
    auto parts = split_opcode(from.opcode);
    auto name = parts[0];
    if (name.back() == '2' || name.back() == '4') {
        form.lanes = static_cast<std::uint8_t>(name.back() - '0');
        name.remove_suffix(1);
    }
    static constexpr std::string_view kNames[] = {"vadd",  "vsub", "vabsdiff", "vmin", "vmax",
                                                  "vavrg", "vshl", "vshr",     "vset", "vmad"};
    while (form.operation < std::size(kNames) && kNames[form.operation] != name) {
        ++form.operation;
    }
    if (form.operation == std::size(kNames)) {
        unsupported();
    }
    const bool multiplies = name == "vmad", compares = name == "vset";
    std::size_t types = 0;
    for (std::size_t k = 1; k < parts.size(); ++k) {
        const auto part = parts[k];
        static constexpr std::string_view kComparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"};
        std::uint8_t comparison = 0;
        while (comparison < 6 && kComparisons[comparison] != part) {
            ++comparison;
        }
        if (part == "u32" || part == "s32") {
            if (types == 3) {
                unsupported();
            }
            form.is_signed[types++] = part == "s32";
        } else if (compares && comparison < 6) {
            form.comparison = comparison;
        } else if (part == "sat") {
            form.saturate = true;
        } else if (part == "add" || part == "min" || part == "max") {
            form.secondary = part == "add" ? 1 : part == "min" ? 2 : 3;
        } else if (part == "wrap" || part == "clamp") {
            form.wraps = part == "wrap";
        } else if (multiplies && (part == "shr7" || part == "shr15")) {
            form.shift = part == "shr7" ? 7 : 15;
        } else {
            unsupported();
        }
    }
    if (types != (compares ? 2U : 3U)) {
        unsupported();
    }
    if (compares) {  // for vset, the operands' types; its result is 0 or 1
        form.is_signed[2] = form.is_signed[1], form.is_signed[1] = form.is_signed[0], form.is_signed[0] = false;
    }
    const auto selected = [&](std::size_t k, std::uint8_t& select) {
        ptx::Operand plain = operand(from, k);
        select = 0;
        if (plain.selector.empty()) {
            return source(plain, Slot::bits32);
        }
        const auto text = plain.selector;
        if (form.lanes != 0 || text.size() != 2 || (text[0] != 'b' && text[0] != 'h') || text[1] < '0' ||
            text[1] > '3') {
            unsupported();
        }
        select = static_cast<std::uint8_t>((text[0] == 'b' ? 1 : 5) + (text[1] - '0'));
        if (select > 6) {
            unsupported();
        }
        return source(plain, Slot::bits32);
    };
    const std::uint32_t a = selected(1, form.select[0]);
    const std::uint32_t b = selected(2, form.select[1]);
    const ptx::Operand& to = operand(from, 0);
    if (!to.selector.empty()) {
        if (form.lanes != 0 || form.secondary != 0) {
            unsupported();
        }
        const auto text = to.selector;
        if (text.size() != 2 || (text[0] != 'b' && text[0] != 'h') || text[1] < '0' || text[1] > '3') {
            unsupported();
        }
        form.merge = static_cast<std::uint8_t>((text[0] == 'b' ? 1 : 5) + (text[1] - '0'));
        if (form.merge > 6) {
            unsupported();
        }
    }
    const bool third = from.operands.size() > 3;
    if (!third && (form.secondary != 0 || form.merge != 0 || form.lanes != 0 || multiplies)) {
        unsupported();
    }
    const std::uint32_t c = third ? source(from.operands[3], Slot::bits32) : constant(Slot::bits32, 0);
    const std::uint32_t d = destination(to, Slot::bits32);
    Inst& i = emit("video");
    i.a = a, i.b = b, i.c = c, i.d = d, i.imm = form.packed();
}

}  // namespace gpupool::softgpu
