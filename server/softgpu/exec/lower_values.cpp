// Lowering of moves, conversions, address conversions and comparisons.
#include <fmt/format.h>

#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/exec/convert_mode.h"
#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

Slot slot_for_bytes(std::uint32_t bytes) {
    return bytes <= 2 ? Slot::bits16 : bytes == 4 ? Slot::bits32 : Slot::bits64;
}

}  // namespace

void Lowering::lower_nothing(const ptx::Instruction&) {}

// Cache policies are hints, so their value is never read.
void Lowering::lower_createpolicy(const ptx::Instruction& from) {
    const std::uint32_t zero = constant(Slot::bits64, 0);
    const std::uint32_t d = destination(operand(from, 0), Slot::bits64);
    Inst& i = emit("mov.b64");
    i.a = zero, i.d = d;
}

void Lowering::lower_mov(const ptx::Instruction& from) {
    const auto& to = operand(from, 0);
    const auto& value = operand(from, 1);
    const auto type = ptx::type_from_name(from.opcode.substr(from.opcode.rfind('.') + 1));
    if (type == ptx::Type::none) {
        unsupported();
    }
    if (type == ptx::Type::b128) {
        return lower_wide_mov(to, value);
    }
    if (to.kind == ptx::OperandKind::vector) {
        return unpack(to, value);
    }
    if (value.kind == ptx::OperandKind::vector) {
        return pack(to, value);
    }
    if (type == ptx::Type::pred && value.kind == ptx::OperandKind::special && value.name == "%is_explicit_cluster") {
        const std::uint32_t d = destination(to, Slot::pred);
        emit("explicit_cluster").d = d;
        return;
    }
    if (type == ptx::Type::pred) {
        return from_table(from, op("mov.pred"));
    }
    const Slot kind = slot_for_bytes(ptx::width_bytes(type));
    const bool real = type == ptx::Type::f32 || type == ptx::Type::f64;
    const Slot immediate_kind = !real ? kind : type == ptx::Type::f32 ? Slot::float32 : Slot::float64;
    const std::uint32_t a = source(value, immediate_kind);
    const std::uint32_t d = destination(to, kind);
    Inst& i = emit(kind == Slot::bits16 ? "mov.b16" : kind == Slot::bits32 ? "mov.b32" : "mov.b64");
    i.d = d;
    i.a = a;
}

void Lowering::lower_wide_mov(const ptx::Operand& to, const ptx::Operand& value) {
    const auto slot_of_half = [&](const ptx::Operand& operand, std::uint32_t half, bool written) {
        if (operand.kind != ptx::OperandKind::vector) {
            return wide_slot(operand) + half * slot_bytes(Slot::bits64);
        }
        if (operand.items.size() != 2) {
            unsupported();
        }
        return written ? destination(operand.items[half], Slot::bits64) : source(operand.items[half], Slot::bits64);
    };
    for (std::uint32_t half = 0; half < 2; ++half) {
        const std::uint32_t a = slot_of_half(value, half, false);
        const std::uint32_t d = slot_of_half(to, half, true);
        Inst& i = emit("mov.b64");
        i.a = a, i.d = d;
    }
}

void Lowering::unpack(const ptx::Operand& vector, const ptx::Operand& value) {
    const std::size_t count = vector.items.size();
    if (value.kind != ptx::OperandKind::reg) {
        unsupported();
    }
    const Slot whole = kind_of_register(value.index);
    const bool wide = slot_bytes(whole) == 8 * kLaneCount;
    if (slot_bytes(whole) == 2 * kLaneCount && count == 2) {  // two bytes
        const std::uint32_t a = computed("mov.b16", {slot_of_register(value.index)});
        const char* halves[] = {"low.u16.u8", "high.u16.u8"};
        for (std::size_t i = 0; i < 2; ++i) {
            if (vector.items[i].kind == ptx::OperandKind::sink) {
                continue;
            }
            const std::uint32_t d = destination(vector.items[i], Slot::bits16);
            Inst& part = emit(halves[i]);
            part.a = a, part.d = d;
        }
        return;
    }
    if (slot_bytes(whole) < 4 * kLaneCount || (count != 2 && !(count == 4 && wide))) {
        unsupported();
    }
    // Take the parts from a copy, since one of them may be the register itself.
    std::vector<std::uint32_t> parts{slot_of_register(value.index)};
    Slot kind = whole;
    while (parts.size() < count) {
        const bool from_wide = slot_bytes(kind) == 8 * kLaneCount;
        const Slot half = from_wide ? Slot::bits32 : Slot::bits16;
        std::vector<std::uint32_t> next;
        for (const auto part : parts) {
            const std::uint32_t low = temporary(half), high = temporary(half);
            Inst& first = emit(from_wide ? "narrow.u64.u32" : "narrow.u32.u16");
            first.a = part, first.d = low;
            Inst& second = emit(from_wide ? "high.u64.u32" : "high.u32.u16");
            second.a = part, second.d = high;
            next.push_back(low), next.push_back(high);
        }
        parts = std::move(next);
        kind = half;
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (vector.items[i].kind == ptx::OperandKind::sink) {
            continue;
        }
        const std::uint32_t d = destination(vector.items[i], kind);
        Inst& move = emit(kind == Slot::bits16 ? "mov.b16" : "mov.b32");
        move.a = parts[i], move.d = d;
    }
}

void Lowering::pack(const ptx::Operand& value, const ptx::Operand& vector) {
    if (value.kind != ptx::OperandKind::reg) {
        unsupported();
    }
    const Slot whole = kind_of_register(value.index);
    const std::size_t count = vector.items.size();
    const bool wide = slot_bytes(whole) == 8 * kLaneCount;
    if (slot_bytes(whole) == 2 * kLaneCount && count == 2) {  // two bytes
        const std::uint32_t low = source(vector.items[0], Slot::bits16);
        const std::uint32_t high = source(vector.items[1], Slot::bits16);
        const std::uint32_t d = destination(value, whole);
        Inst& joined = emit("pack.u8.u16");
        joined.a = low, joined.b = high, joined.d = d;
        return;
    }
    if (slot_bytes(whole) < 4 * kLaneCount || (count != 2 && !(count == 4 && wide))) {
        unsupported();
    }
    Slot kind = slot_for_bytes(slot_bytes(whole) / kLaneCount / static_cast<std::uint32_t>(count));
    std::vector<std::uint32_t> parts;
    for (const auto& item : vector.items) {
        parts.push_back(source(item, kind));
    }
    const std::uint32_t d = destination(value, whole);
    while (parts.size() > 1) {
        const bool to_wide = kind == Slot::bits32;
        const Slot twice = to_wide ? Slot::bits64 : Slot::bits32;
        std::vector<std::uint32_t> next;
        for (std::size_t i = 0; i < parts.size(); i += 2) {
            const std::uint32_t result = parts.size() == 2 ? d : temporary(twice);
            Inst& joined = emit(to_wide ? "pack.u32.u64" : "pack.u16.u32");
            joined.a = parts[i], joined.b = parts[i + 1], joined.d = result;
            next.push_back(result);
        }
        parts = std::move(next);
        kind = twice;
    }
}

void Lowering::lower_cvt(const ptx::Instruction& from) {
    if (const Op* packs = op_table().find(from.opcode); packs != nullptr && packs->sources[1] != Slot::none) {
        return from_table(from, *packs);  // cvt.pack
    }
    std::uint8_t mode = convert_mode::kNearest;
    std::vector<std::string_view> types;
    const auto parts = split_opcode(from.opcode);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto part = parts[i];
        if (part == "rn") {
            mode |= convert_mode::kNearest;
        } else if (part == "rna") {
            mode |= convert_mode::kAway;
        } else if (part == "satfinite") {
            mode |= convert_mode::kFinite;
        } else if (part == "rz") {
            mode |= convert_mode::kZero;
        } else if (part == "rm") {
            mode |= convert_mode::kDown;
        } else if (part == "rp") {
            mode |= convert_mode::kUp;
        } else if (part == "rni") {
            mode |= convert_mode::kNearest | convert_mode::kIntegral;
        } else if (part == "rzi") {
            mode |= convert_mode::kZero | convert_mode::kIntegral;
        } else if (part == "rmi") {
            mode |= convert_mode::kDown | convert_mode::kIntegral;
        } else if (part == "rpi") {
            mode |= convert_mode::kUp | convert_mode::kIntegral;
        } else if (part == "ftz") {
            mode |= convert_mode::kFlush;
        } else if (part == "sat") {
            mode |= convert_mode::kSaturate;
        } else if (part == "relu") {
            mode |= convert_mode::kRelu;
        } else {
            types.push_back(part);
        }
    }
    if (types.size() != 2) {
        unsupported();
    }
    const Op* found = op_table().find(fmt::format("cvt.{}.{}", types[0], types[1]));
    if (found == nullptr) {
        unsupported();
    }
    if (found->sources[1] != Slot::none) {  // f16x2 and bf16x2 from two f32
        from_table(from, *found);
        target_.code.back().mode = mode;
        return;
    }
    const auto to = ptx::type_from_name(types[0]);
    const auto& value = operand(from, 1);
    const auto& result = operand(from, 0);
    // Registers may be wider than the types: narrow the source and widen the result.
    std::uint32_t a;
    if (value.kind == ptx::OperandKind::reg) {
        a = resized(slot_of_register(value.index), kind_of_register(value.index), found->sources[0], false);
    } else {
        a = source(value, found->sources[0]);
    }
    if (result.kind != ptx::OperandKind::reg) {
        unsupported();
    }
    const Slot has = kind_of_register(result.index);
    const bool same = slot_bytes(has) == slot_bytes(found->d);
    const std::uint32_t d = same ? slot_of_register(result.index) : temporary(found->d);
    Inst& i = emit(*found);
    i.a = a, i.d = d, i.mode = mode;
    if (same) {
        return;
    }
    const std::uint32_t widened = resized(d, found->d, has, ptx::is_signed(to));
    const std::uint32_t final_slot = slot_of_register(result.index);
    if (widened == d) {
        unsupported();
    }
    target_.code.back().d = final_slot;
}

void Lowering::lower_cvta(const ptx::Instruction& from) {
    // To a space: subtract its window; from a space: add it. Global and const addresses are already generic.
    const auto parts = split_opcode(from.opcode);
    const bool to_space = parts.size() > 1 && parts[1] == "to";
    const std::size_t at = to_space ? 2 : 1;
    if (parts.size() != at + 2) {
        unsupported();
    }
    if (parts[at + 1] != "u64") {
        fail("only 64-bit addresses are supported");
    }
    const auto space = parts[at].substr(0, parts[at].find("::"));
    const std::uint32_t a = source(operand(from, 1), Slot::bits64);
    const std::uint32_t d = destination(operand(from, 0), Slot::bits64);
    if (space == "global" || space == "const") {
        Inst& i = emit("mov.b64");
        i.a = a, i.d = d;
    } else if (space == "shared" || space == "local") {
        const std::uint64_t base = space == "shared" ? windows().shared_base : windows().local_base;
        const std::uint32_t b = constant(Slot::bits64, base);
        Inst& i = emit(to_space ? "sub.u64" : "add.u64");
        i.a = a, i.b = b, i.d = d;
    } else if (space == "param" && !to_space && source_.entry) {
        Inst& i = emit("param_address");
        i.a = a, i.d = d;
    } else if (space == "param" && !to_space) {  // of a function: in its local memory (addressed_formals)
        const std::uint32_t b = constant(Slot::bits64, windows().local_base);
        Inst& i = emit("add.u64");
        i.a = a, i.b = b, i.d = d;
    } else {
        unsupported();
    }
}

void Lowering::lower_isspacep(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() != 2) {
        unsupported();
    }
    const auto space = parts[1].substr(0, parts[1].find("::"));
    std::uint64_t which = 0;
    if (space == "global" || space == "const") {
        which = 0;
    } else if (space == "shared") {
        which = 1;
    } else if (space == "local") {
        which = 2;
    } else if (space == "param") {
        which = 3;
    } else {
        unsupported();
    }
    const std::uint32_t a = source(operand(from, 1), Slot::bits64);
    const std::uint32_t d = destination(operand(from, 0), Slot::pred);
    Inst& i = emit("in_space");
    i.a = a, i.d = d, i.imm = which;
}

// Inst::mode of a comparison for and, or, xor; 0 for anything else.
std::uint8_t Lowering::boolean_operator(std::string_view name) {
    return name == "and" ? 1 : name == "or" ? 2 : name == "xor" ? 3 : 0;
}

void Lowering::compared_sources(const ptx::Instruction& from, const Op& compare, bool flush, std::string_view type,
                                std::uint32_t* sources) {
    for (std::size_t i = 0; i < 2; ++i) {
        sources[i] = source(operand(from, 1 + i), compare.sources[i]);
        if (!flush) {
            continue;
        }
        if (compare.sources[i] == Slot::float32) {
            const std::uint32_t flushed = temporary(Slot::float32);
            Inst& f = emit("cvt.f32.f32");
            f.a = sources[i], f.d = flushed, f.mode = convert_mode::kFlush;
            sources[i] = flushed;
        } else {
            sources[i] = computed(fmt::format("flush.{}", type), {sources[i]});
        }
    }
}

void Lowering::lower_setp(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    std::string_view comparison, type;
    std::uint8_t combine = 0;
    bool flush = false;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        if (const std::uint8_t operation = boolean_operator(parts[i]); operation != 0) {
            combine = operation;
        } else if (parts[i] == "ftz") {
            flush = true;
        } else if (type.empty() && ptx::type_from_name(parts[i]) != ptx::Type::none) {
            type = parts[i];
        } else if (comparison.empty()) {
            comparison = parts[i];
        } else {
            unsupported();
        }
    }
    const Op& compare = op(fmt::format("setp.{}.{}", comparison, type));
    std::uint32_t sources[2];
    compared_sources(from, compare, flush, type, sources);
    const std::uint32_t c = combine == 0 ? kNoSlot : source(operand(from, 3), Slot::pred);
    const auto& to = operand(from, 0);
    const std::uint32_t p = destination(to, Slot::pred);
    const std::uint32_t q = to.second >= 0 ? slot_of_register(to.second) : kNoSlot;
    if (q != kNoSlot && compare.second != Slot::pred) {
        unsupported();
    }
    if (combine != 0 && compare.second != Slot::pred) {
        unsupported();
    }
    Inst& i = emit(compare);
    i.a = sources[0], i.b = sources[1], i.c = c, i.d = p, i.e = q, i.mode = combine;
}

void Lowering::lower_set(const ptx::Instruction& from) {
    // The comparison may precede the types (set.lt.u32.f16) or follow them (set.u32.bf16.lt).
    std::vector<std::string_view> types;
    std::string_view comparison;
    std::uint8_t combine = 0;
    bool flush = false;
    const auto parts = split_opcode(from.opcode);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        if (const std::uint8_t operation = boolean_operator(parts[i]); operation != 0) {
            combine = operation;
        } else if (parts[i] == "ftz") {
            flush = true;
        } else if (ptx::type_from_name(parts[i]) != ptx::Type::none) {
            types.push_back(parts[i]);
        } else if (comparison.empty()) {
            comparison = parts[i];
        } else {
            unsupported();
        }
    }
    if (types.size() != 2) {
        unsupported();
    }
    const auto result_type = ptx::type_from_name(types[0]);
    const auto compared = types[1];
    const Op& compare = op(fmt::format("setp.{}.{}", comparison, compared));
    std::uint32_t sources[2];
    compared_sources(from, compare, flush, compared, sources);
    const std::uint32_t c = combine == 0 ? kNoSlot : source(operand(from, 3), Slot::pred);
    const bool pair = result_type == ptx::Type::f16x2 || result_type == ptx::Type::bf16x2;
    const bool of_pairs = compared == "f16x2" || compared == "bf16x2";
    const std::uint32_t p = temporary(Slot::pred);
    const std::uint32_t q = of_pairs ? temporary(Slot::pred) : kNoSlot;
    Inst& i = emit(compare);
    i.a = sources[0], i.b = sources[1], i.c = c, i.d = p, i.e = q, i.mode = combine;
    const std::uint32_t bytes = ptx::width_bytes(result_type);
    const std::uint64_t yes = result_type == ptx::Type::f32                                        ? 0x3F800000U
                              : result_type == ptx::Type::f16 || result_type == ptx::Type::f16x2   ? 0x3C00U
                              : result_type == ptx::Type::bf16 || result_type == ptx::Type::bf16x2 ? 0x3F80U
                                                                                                   : ~std::uint64_t{0};
    const std::uint32_t d = destination(operand(from, 0), slot_for_bytes(bytes));
    if (of_pairs) {
        Inst& values = emit("frompred.pair");
        values.a = p, values.b = q, values.d = d, values.imm = pair ? yes : 0xFFFF;
        return;
    }
    Inst& value = emit(bytes == 2 ? "frompred.16" : bytes == 4 ? "frompred.32" : "frompred.64");
    value.a = p, value.d = d, value.imm = yes;
}

}  // namespace gpupool::softgpu
