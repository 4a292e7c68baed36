// Lowering of loads, stores, atomics and fences.
#include <fmt/format.h>

#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

// Suffixes without effect here: cache hints, scopes, and orders that every access has on x86.
bool is_hint(std::string_view part) {
    static constexpr std::string_view kHints[] = {"weak", "mmio", "cta",     "cluster", "gpu",    "sys",
                                                  "ca",   "cg",   "cs",      "lu",      "cv",     "wb",
                                                  "wt",   "nc",   "unified", "release", "acq_rel"};
    for (const auto hint : kHints) {
        if (part == hint) {
            return true;
        }
    }
    return starts_with(part, "L1::") || starts_with(part, "L2::") || starts_with(part, "level::");
}

}  // namespace

Lowering::MemoryForm Lowering::memory_form(std::string_view opcode, bool atomic) const {
    MemoryForm form;
    const auto parts = split_opcode(opcode);
    form.polls = atomic;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto part = parts[i];
        const auto space = part.substr(0, part.find("::"));
        if (part == "volatile" || part == "acquire" || part == "relaxed" || part == "seq_cst") {
            form.polls = true;
        } else if (is_hint(part)) {
            continue;
        } else if (space == "global" || space == "const") {
            form.space = MemorySpace::global;
        } else if (space == "shared") {
            form.space = MemorySpace::shared;
        } else if (space == "local") {
            form.space = MemorySpace::local;
        } else if (space == "param") {
            form.param = true;
        } else if (part == "v2" || part == "v4" || part == "v8") {
            form.elements = static_cast<std::uint32_t>(part[1] - '0');
        } else if (const auto type = ptx::type_from_name(part); type != ptx::Type::none) {
            form.type = type, form.type_name = part;
        } else if (atomic) {
            form.operation += form.operation.empty() ? std::string(part) : fmt::format(".{}", part);
        } else {
            unsupported();
        }
    }
    if (form.type == ptx::Type::none || form.type == ptx::Type::pred) {
        unsupported();
    }
    return form;
}

void Lowering::address(const ptx::Operand& from, MemoryForm& form, std::uint32_t& base, std::uint64_t& offset,
                       std::uint8_t& mode) {
    if (from.kind != ptx::OperandKind::address || from.items.size() != 1) {
        unsupported();
    }
    const ptx::Operand& at = from.items[0];
    base = kNoSlot;
    offset = static_cast<std::uint64_t>(from.value);
    if (form.param) {
        form.space = source_.entry ? MemorySpace::entry_param : MemorySpace::area;
    }
    switch (at.kind) {
        case ptx::OperandKind::integer: break;
        case ptx::OperandKind::reg: {
            const Slot kind = kind_of_register(at.index);
            if (slot_bytes(kind) != 4 * kLaneCount && slot_bytes(kind) != 8 * kLaneCount) {
                fail(fmt::format("'{}' cannot hold an address", at.name));
            }
            const bool narrow = slot_bytes(kind) == 4 * kLaneCount;
            const bool flat = form.space == MemorySpace::generic || form.space == MemorySpace::global;
            // The address of a function's parameter points into its local memory.
            if (form.param && !source_.entry) {
                form.space = MemorySpace::local;
            }
            base = slot_of_register(at.index);
            if (narrow && flat) {
                base = resized(base, kind, Slot::bits64, false);
            } else if (narrow) {
                mode |= kAddressIs32Bits;
            }
            break;
        }
        case ptx::OperandKind::symbol: {
            if (at.variable >= 0) {
                const Placed& placed = variables_[static_cast<std::size_t>(at.variable)];
                if (form.param && placed.space != ptx::Space::local) {
                    // An entry's formal parameters are in the launch's buffer; arguments of calls are in the frame.
                    const bool formal = static_cast<std::size_t>(at.variable) < source_.params.size();
                    if (!(source_.entry && formal)) {
                        form.space = MemorySpace::area;
                    }
                    offset += placed.offset_bytes;
                    break;
                }
                if (placed.space == ptx::Space::shared && !placed.dynamic_shared) {
                    form.space = MemorySpace::shared;
                    offset += placed.offset_bytes;
                    break;
                }
                if (placed.space == ptx::Space::local) {
                    form.space = MemorySpace::local;
                }
                if (placed.space == ptx::Space::shared) {
                    form.space = MemorySpace::shared;
                }
            }
            base = symbol_address(at);
            break;
        }
        default: unsupported();
    }
    mode |= static_cast<std::uint8_t>(form.space);
    if (form.polls) {
        mode |= kMayPoll;
    }
}

// Both halves of a 128-bit register as a vector of two.
std::uint32_t Lowering::halves(const ptx::Operand& operand) {
    const auto first = static_cast<std::uint32_t>(target_.aux.size());
    const std::uint32_t low = wide_slot(operand);
    target_.aux.insert(target_.aux.end(), {low, low + slot_bytes(Slot::bits64)});
    return first;
}

std::uint32_t Lowering::vector_slots(const ptx::Operand& operand, ptx::Type type, bool store, Slot& kind) {
    // All elements use the slot size of the first register.
    kind = Slot::none;
    for (const auto& item : operand.items) {
        if (item.kind == ptx::OperandKind::reg && kind == Slot::none) {
            kind = kind_of_register(item.index);
        }
    }
    if (kind == Slot::none) {
        const std::uint32_t bytes = ptx::width_bytes(type);
        kind = bytes <= 2 ? Slot::bits16 : bytes == 4 ? Slot::bits32 : Slot::bits64;
    }
    std::vector<std::uint32_t> slots;
    for (const auto& item : operand.items) {
        if (store) {
            slots.push_back(source(item, type == ptx::Type::f32   ? Slot::float32
                                         : type == ptx::Type::f64 ? Slot::float64
                                                                  : kind));
        } else {
            slots.push_back(item.kind == ptx::OperandKind::sink ? kNoSlot : destination(item, kind));
        }
    }
    const auto first = static_cast<std::uint32_t>(target_.aux.size());
    target_.aux.insert(target_.aux.end(), slots.begin(), slots.end());
    return first;
}

void Lowering::lower_ld(const ptx::Instruction& from) {
    MemoryForm form = memory_form(from.opcode, false);
    const auto& to = operand(from, 0);
    const bool vector = form.elements > 1 || to.kind == ptx::OperandKind::vector;
    if (vector && to.items.size() != form.elements) {
        fail("a vector of the wrong length");
    }
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, 1), form, base, offset, mode);
    Slot kind = Slot::none;
    std::uint32_t d;
    const bool wide = form.type == ptx::Type::b128;
    if (wide) {
        if (vector) {
            unsupported();
        }
        d = halves(to);
        kind = Slot::bits64;
    } else if (vector) {
        d = vector_slots(to, form.type, false, kind);
    } else {
        if (to.kind != ptx::OperandKind::reg) {
            fail("a load into something that is not a register");
        }
        kind = kind_of_register(to.index);
        if (kind == Slot::pred) {
            fail("a load into a predicate");
        }
        d = slot_of_register(to.index);
    }
    const std::uint32_t bytes = wide ? 8 : ptx::width_bytes(form.type);
    const std::uint32_t slot_bits = slot_bytes(kind) / kLaneCount * 8;
    if (slot_bits < bytes * 8) {
        fail("a load into a register that is too small");
    }
    const bool uniform = form.space == MemorySpace::entry_param && base == kNoSlot && !vector && !wide;
    if (uniform && (offset > target_.param_bytes || target_.param_bytes - offset < bytes)) {
        fail("a load beyond the kernel's parameters");
    }
    Inst& i = emit(op(fmt::format("{}.{}{}.{}", uniform ? "ldu" : "ld", ptx::is_signed(form.type) ? 's' : 'u',
                                  bytes * 8, slot_bits)));
    i.a = base, i.imm = offset, i.d = d, i.mode = mode;
    if (vector || wide) {
        i.extra = wide ? 2 : form.elements, i.lists = kListAtD;
    }
}

void Lowering::lower_st(const ptx::Instruction& from) {
    if (starts_with(from.opcode, "st.async")) {
        return lower_st_async(from);
    }
    MemoryForm form = memory_form(from.opcode, false);
    const auto& value = operand(from, 1);
    const bool vector = form.elements > 1 || value.kind == ptx::OperandKind::vector;
    if (vector && value.items.size() != form.elements) {
        fail("a vector of the wrong length");
    }
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, 0), form, base, offset, mode);
    if (form.space == MemorySpace::entry_param) {
        fail("a store to a kernel's parameter");
    }
    const bool wide = form.type == ptx::Type::b128;
    const std::uint32_t bytes = wide ? 8 : ptx::width_bytes(form.type);
    Slot kind = Slot::none;
    std::uint32_t b;
    if (wide) {
        if (vector) {
            unsupported();
        }
        b = halves(value);
        kind = Slot::bits64;
    } else if (vector) {
        b = vector_slots(value, form.type, true, kind);
    } else {
        kind = form.type == ptx::Type::f32   ? Slot::float32
               : form.type == ptx::Type::f64 ? Slot::float64
               : bytes <= 2                  ? Slot::bits16
               : bytes == 4                  ? Slot::bits32
                                             : Slot::bits64;
        if (value.kind == ptx::OperandKind::reg) {
            kind = kind_of_register(value.index);
        }
        if (kind == Slot::pred) {
            fail("a store of a predicate");
        }
        b = source(value, kind);
    }
    const std::uint32_t slot_bits = slot_bytes(kind) / kLaneCount * 8;
    if (slot_bits < bytes * 8) {
        fail("a store from a register that is too small");
    }
    Inst& i = emit(op(fmt::format("st.{}.{}", bytes * 8, slot_bits)));
    i.a = base, i.imm = offset, i.b = b, i.mode = mode;
    if (vector || wide) {
        i.extra = wide ? 2 : form.elements, i.lists = kListAtB;
    }
}

void Lowering::lower_atom(const ptx::Instruction& from) {
    if (starts_with(from.opcode, "red.async")) {
        return lower_red_async(from);
    }
    MemoryForm form = memory_form(from.opcode, true);
    if (form.elements != 1) {
        return lower_vector_atom(from, form);
    }
    const Op& found = op(fmt::format("atom.{}.{}", form.operation, form.type_name));
    const bool returns = starts_with(from.opcode, "atom");
    const std::size_t at = returns ? 1 : 0;
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, at), form, base, offset, mode);
    const bool wide = form.type == ptx::Type::b128;
    const auto value = [&](std::size_t k) {
        return wide ? wide_slot(operand(from, at + 1 + k)) : source(operand(from, at + 1 + k), found.sources[k]);
    };
    const std::uint32_t b = value(0);
    const std::uint32_t c = found.sources[1] == Slot::none ? kNoSlot : value(1);
    const bool wanted = returns && operand(from, 0).kind != ptx::OperandKind::sink;
    const std::uint32_t d = !wanted ? kNoSlot
                            : wide  ? wide_slot(operand(from, 0))
                                    : destination(operand(from, 0), found.d);
    Inst& i = emit(found);
    i.a = base, i.imm = offset, i.b = b, i.c = c, i.d = d, i.mode = mode;
}

// Each element is atomic by itself, as PTX specifies.
void Lowering::lower_vector_atom(const ptx::Instruction& from, MemoryForm& form) {
    const Op& found = op(fmt::format("atom.{}.{}", form.operation, form.type_name));
    const bool returns = starts_with(from.opcode, "atom");
    const std::size_t at = returns ? 1 : 0;
    const ptx::Operand& values = operand(from, at + 1);
    if (values.items.size() != form.elements || found.sources[1] != Slot::none) {
        unsupported();
    }
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, at), form, base, offset, mode);
    std::vector<std::uint32_t>
        results;  // written last, since a result may be the register of the address or of a value
    for (std::size_t k = 0; k < form.elements; ++k) {
        const std::uint32_t b = source(values.items[k], found.sources[0]);
        const std::uint32_t d = returns ? temporary(found.d) : kNoSlot;
        Inst& i = emit(found);
        i.a = base, i.imm = offset + k * ptx::width_bytes(form.type), i.b = b, i.d = d, i.mode = mode;
        results.push_back(d);
    }
    if (!returns) {
        return;
    }
    const ptx::Operand& to = operand(from, 0);
    if (to.items.size() != form.elements) {
        fail("a vector of the wrong length");
    }
    const Op& move = op(slot_bytes(found.d) == 2 * kLaneCount ? "mov.b16" : "mov.b32");
    for (std::size_t k = 0; k < form.elements; ++k) {
        if (to.items[k].kind == ptx::OperandKind::sink) {
            continue;
        }
        const std::uint32_t d = destination(to.items[k], found.d);
        Inst& i = emit(move);
        i.a = results[k], i.d = d;
    }
}

// The strongest fence covers every kind of fence, including those for proxies and mbarriers.
void Lowering::lower_fence(const ptx::Instruction&) {
    emit("fence");
}

}  // namespace gpupool::softgpu
