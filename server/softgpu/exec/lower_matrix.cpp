// Lowering of a warp's matrix instructions.
#include <fmt/format.h>

#include <cstdio>

#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint32_t kMaxExtent = 256;

Element element_from_name(std::string_view name) {
    struct Named {
        std::string_view name;
        Element element;
    };
    static constexpr Named kElements[] = {{"f16", Element::f16},  {"bf16", Element::bf16}, {"tf32", Element::tf32},
                                          {"f32", Element::f32},  {"f64", Element::f64},   {"s8", Element::s8},
                                          {"u8", Element::u8},    {"s4", Element::s4},     {"u4", Element::u4},
                                          {"b1", Element::b1},    {"s32", Element::s32},   {"e4m3", Element::e4m3},
                                          {"e5m2", Element::e5m2}};
    for (const auto& known : kElements) {
        if (known.name == name) {
            return known.element;
        }
    }
    return Element::none;
}

bool shape_from_name(std::string_view name, MatrixForm& form) {
    const std::string text(name);
    int used = 0;
    const bool read = std::sscanf(text.c_str(), "m%3un%3uk%3u%n", &form.m, &form.n, &form.k, &used) == 3;
    const auto good = [](std::uint32_t extent) { return extent >= 4 && extent <= kMaxExtent && extent % 4 == 0; };
    return read && static_cast<std::size_t>(used) == text.size() && good(form.m) && good(form.n) && good(form.k);
}

// Positions of the elements in mma.sync's fragments: PTX manual, "Matrix Fragments for mma". A lane belongs to a group
// of four; registers alternate between the upper and the lower eight rows and then move right (a) or down (b).
enum class Role : std::uint8_t { a, b, c };

std::vector<std::uint16_t> matrix_places(const MatrixForm& form, Role role, std::size_t registers, Element element) {
    const std::uint32_t packed = element_bits(element) >= 32 ? 1 : 32 / element_bits(element);
    std::vector<std::uint16_t> places;
    for (std::uint32_t r = 0; r < registers; ++r) {
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            const std::uint32_t group = lane / 4, within = lane % 4;
            for (std::uint32_t s = 0; s < packed; ++s) {
                std::uint32_t row, column, columns;
                if (role == Role::a) {
                    const bool halves = form.m == 16;
                    row = group + (halves ? 8 * (r & 1) : 0);
                    column = within * packed + s + (halves ? r >> 1 : r) * 4 * packed;
                    columns = form.k;
                } else if (role == Role::b) {
                    row = within * packed + s + r * 4 * packed;
                    column = group;
                    columns = form.n;
                } else {
                    const std::uint32_t index = r * packed + s;
                    row = group + 8 * (index >> 1);
                    column = within * 2 + (index & 1);
                    columns = form.n;
                }
                places.push_back(static_cast<std::uint16_t>(row * columns + column));
            }
        }
    }
    return places;
}

std::uint32_t registers_of(std::uint32_t elements, Element element) {
    return (elements * element_bits(element) + 32 * kLaneCount - 1) /
           (std::max<std::uint32_t>(32, element_bits(element)) * kLaneCount);
}

}  // namespace

std::vector<std::uint32_t> Lowering::matrix_slots(const ptx::Operand& from, Element element, bool written) {
    const Slot kind = element == Element::f64 ? Slot::bits64 : Slot::bits32;
    const Slot immediate = element == Element::f64 ? Slot::float64 : element == Element::f32 ? Slot::float32 : kind;
    std::vector<std::uint32_t> slots;
    const auto one = [&](const ptx::Operand& item) {
        slots.push_back(written ? destination(item, kind) : source(item, immediate));
    };
    if (from.kind == ptx::OperandKind::vector) {
        for (const auto& item : from.items) {
            one(item);
        }
    } else {
        one(from);
    }
    return slots;
}

Inst& Lowering::emit_matrix(const char* name, MatrixForm form) {
    const std::uint32_t members = constant(Slot::bits32, kAllLanes);
    Inst& i = emit(name);
    i.e = members;
    i.target = static_cast<std::uint32_t>(target_.matrices.size());
    target_.matrices.push_back(std::move(form));
    return i;
}

// {w}mma: the opcode's parts are shape, element types and overflow mode.
void Lowering::lower_mma(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const bool fragments = parts[0] == "wmma";
    MatrixForm form;
    std::vector<Element> types;
    bool counts = false, intersects = false;
    for (std::size_t i = fragments ? 2 : 1; i < parts.size(); ++i) {
        const auto part = parts[i];
        if (const Element element = element_from_name(part); element != Element::none) {
            types.push_back(element);
        } else if (part[0] == 'm' && shape_from_name(part, form)) {
            continue;
        } else if (part == "satfinite") {
            form.saturate = true;
        } else if (part == "popc") {
            counts = true;
        } else if (part == "xor") {
            form.exclusive_or = true;
        } else if (part == "and") {
            intersects = true;
        } else if (part != "sync" && part != "aligned" && part != "row" && part != "col" && part != "rn") {
            unsupported();
        }
    }
    if (form.m == 0 || (types.size() != 4 && !(fragments && types.size() == 2))) {
        unsupported();
    }
    form.d = types.front(), form.c = types.back();
    form.a = types.size() == 4 ? types[1] : Element::f16;
    form.b = types.size() == 4 ? types[2] : Element::f16;
    const bool bits = form.a == Element::b1;
    if (bits != counts || bits != (form.exclusive_or || intersects)) {
        unsupported();
    }
    // The 8x8x4 form of f16, from the first generation, has another layout with four matrices per instruction.
    if (!fragments && form.m == 8 && form.k == 4 && form.a != Element::f64) {
        unsupported();
    }
    if (from.operands.size() != 4) {
        unsupported();
    }
    form.d_slots = matrix_slots(from.operands[0], form.d, true);
    form.a_slots = matrix_slots(from.operands[1], form.a, false);
    form.b_slots = matrix_slots(from.operands[2], form.b, false);
    form.c_slots = matrix_slots(from.operands[3], form.c, false);
    check_fragment(form.a_slots, form.m * form.k, form.a, fragments);
    check_fragment(form.b_slots, form.k * form.n, form.b, fragments);
    check_fragment(form.c_slots, form.m * form.n, form.c, fragments);
    check_fragment(form.d_slots, form.m * form.n, form.d, fragments);
    if (!fragments) {
        if (form.n != 8 || (form.m != 8 && form.m != 16)) {
            unsupported();
        }
        form.a_places = matrix_places(form, Role::a, form.a_slots.size(), form.a);
        form.b_places = matrix_places(form, Role::b, form.b_slots.size(), form.b);
        form.c_places = matrix_places(form, Role::c, form.c_slots.size(), form.c);
        form.d_places = matrix_places(form, Role::c, form.d_slots.size(), form.d);
    }
    const bool integers = form.d == Element::s32;
    const char* name = integers                 ? "matrix.multiply.s32"
                       : form.d == Element::f64 ? "matrix.multiply.f64"
                                                : "matrix.multiply.f32";
    emit_matrix(name, std::move(form));
}

// For small shapes, wmma fragments of f16 contain each element two or four times.
void Lowering::check_fragment(const std::vector<std::uint32_t>& slots, std::uint32_t elements, Element element,
                              bool repeats) const {
    const std::uint32_t needed = registers_of(elements, element);
    const bool good = repeats ? slots.size() >= needed && slots.size() % needed == 0 : slots.size() == needed;
    if (!good) {
        fail(fmt::format("a fragment of '{}' has {} registers, not {}", current_->opcode, slots.size(), needed));
    }
}

// wmma.load.a.sync.aligned.layout.shape{.space}.type d, [p]{, stride}; wmma.store.d with swapped operands.
void Lowering::lower_wmma(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() < 2 || parts[1] == "mma") {
        return lower_mma(from);
    }
    const bool store = parts[1] == "store";
    if ((!store && parts[1] != "load") || parts.size() < 7) {
        unsupported();
    }
    MatrixForm form;
    MemoryForm memory;
    for (std::size_t i = 3; i < parts.size(); ++i) {
        const auto part = parts[i];
        const auto space = part.substr(0, part.find("::"));
        if (const Element element = element_from_name(part); element != Element::none) {
            form.d = element;
        } else if (part == "col") {
            form.by_column = true;
        } else if (space == "shared") {
            memory.space = MemorySpace::shared;
        } else if (space == "global") {
            memory.space = MemorySpace::global;
        } else if (part != "sync" && part != "aligned" && part != "row" && !shape_from_name(part, form)) {
            unsupported();
        }
    }
    if (form.m == 0 || form.d == Element::none || from.operands.size() < 2) {
        unsupported();
    }
    const char role = parts[2][0];
    form.rows = role == 'b' ? form.k : form.m;
    form.columns = role == 'a' ? form.k : form.n;
    form.d_slots = matrix_slots(from.operands[store ? 1 : 0], form.d, !store);
    check_fragment(form.d_slots, form.rows * form.columns, form.d, true);
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, store ? 0 : 1), memory, base, offset, mode);
    if (from.operands.size() > 2) {
        form.stride = source(from.operands[2], Slot::bits32);
    }
    Inst& i = emit_matrix(store ? "matrix.store" : "matrix.load", std::move(form));
    i.a = base, i.imm = offset, i.mode = mode;
}

// ldmatrix.sync.aligned.m8n8.x4{.trans}{.shared}.b16 r, [p]; stmatrix with swapped operands.
void Lowering::lower_ldmatrix(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const bool store = parts[0] == "stmatrix";
    MatrixForm form;
    MemoryForm memory;
    std::size_t count = 0;
    bool halves = false, shape = false;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto part = parts[i];
        if (part == "x1" || part == "x2" || part == "x4") {
            count = static_cast<std::size_t>(part[1] - '0');
        } else if (part == "trans") {
            form.transposed = true;
        } else if (part == "m8n8") {
            shape = true;
        } else if (part == "b16") {
            halves = true;
        } else if (part.substr(0, 6) == "shared") {
            memory.space = MemorySpace::shared;
        } else if (part != "sync" && part != "aligned") {
            unsupported();
        }
    }
    if (!halves || !shape || count == 0 || from.operands.size() != 2) {
        unsupported();
    }
    form.d = Element::f16;
    form.d_slots = matrix_slots(from.operands[store ? 1 : 0], form.d, !store);
    if (form.d_slots.size() != count) {
        fail("a vector of the wrong length");
    }
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, store ? 0 : 1), memory, base, offset, mode);
    Inst& i = emit_matrix(store ? "matrix.store8" : "matrix.load8", std::move(form));
    i.a = base, i.imm = offset, i.mode = mode;
}

void Lowering::lower_movmatrix(const ptx::Instruction& from) {
    if (from.opcode != "movmatrix.sync.aligned.m8n8.trans.b16") {
        unsupported();
    }
    MatrixForm form;
    form.d = Element::f16;
    form.d_slots = matrix_slots(operand(from, 0), form.d, true);
    form.a_slots = matrix_slots(operand(from, 1), form.d, false);
    if (form.d_slots.size() != 1 || form.a_slots.size() != 1) {
        unsupported();
    }
    emit_matrix("matrix.transpose8", std::move(form));
}

}  // namespace gpupool::softgpu
