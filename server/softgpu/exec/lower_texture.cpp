// Lowering of texture and surface instructions. They use objects, whose handles are in 64-bit registers, or references,
// for which the launch has objects.
#include <fmt/format.h>

#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

struct Geometry {
    std::string_view name;
    std::uint8_t dimensions;
    bool layered;
    bool cube;
};
constexpr Geometry kGeometries[] = {
    {"1d", 1, false, false}, {"2d", 2, false, false},  {"3d", 3, false, false},  {"a1d", 1, true, false},
    {"a2d", 2, true, false}, {"cube", 3, false, true}, {"acube", 3, true, true},
};

const Geometry* find_geometry(std::string_view name) {
    for (const auto& geometry : kGeometries) {
        if (geometry.name == name) {
            return &geometry;
        }
    }
    return nullptr;
}

}  // namespace

// A slot with the handle of the object that an instruction uses.
std::uint32_t Lowering::texture_object(const ptx::Operand& from) {
    if (from.kind == ptx::OperandKind::reg) {
        return source(from, Slot::bits64);
    }
    const auto found = from.kind == ptx::OperandKind::symbol && from.variable < 0 ? symbols_.names.find(from.name)
                                                                                  : symbols_.names.end();
    if (found == symbols_.names.end() || found->second.kind != Symbol::reference) {
        lack("a texture or surface is an object or a reference of the module");
    }
    const std::uint32_t result = temporary(Slot::bits64);
    Inst& i = emit("texture.reference");
    i.d = result;
    i.imm = found->second.value;
    return result;
}

// Parses handle and coordinates of `[handle, {layer, x, y, z}]`.
std::uint32_t Lowering::texture_address(const ptx::Operand& from, TextureAccess& access, bool layered) {
    if (from.kind != ptx::OperandKind::address || from.items.size() != 2) {
        fail(fmt::format("'{}' lacks a texture or coordinates", current_->opcode));
    }
    const ptx::Operand& at = from.items[1];
    const bool vector = at.kind == ptx::OperandKind::vector;
    const std::size_t needed = access.dimensions + (layered ? 1U : 0U);
    if (vector ? at.items.size() < needed : needed != 1) {
        fail(fmt::format("'{}' lacks coordinates", current_->opcode));
    }
    std::size_t next = 0;
    const auto item = [&]() -> const ptx::Operand& { return vector ? at.items[next++] : at; };
    if (layered) {
        access.layer = source(item(), Slot::bits32);
    }
    const Slot kind = access.integer_coordinates ? Slot::bits32 : Slot::float32;
    for (std::uint32_t k = 0; k < access.dimensions; ++k) {
        access.coordinates[k] = source(item(), kind);
    }
    return texture_object(from.items[0]);
}

void Lowering::emit_texture(const char* name, std::uint32_t handle, const TextureAccess& access) {
    Inst& i = emit(name);
    i.a = handle;
    i.extra = static_cast<std::uint32_t>(target_.textures.size());
    target_.textures.push_back(access);
}

void Lowering::texture_results(const ptx::Operand& to, TextureAccess& access, Slot kind) {
    if (to.kind != ptx::OperandKind::vector) {
        if (access.elements != 1) {
            unsupported();
        }
        access.results[0] = to.kind == ptx::OperandKind::sink ? kNoSlot : destination(to, kind);
        return;
    }
    if (to.items.size() != access.elements) {
        fail("a vector of the wrong length");
    }
    for (std::size_t k = 0; k < to.items.size(); ++k) {
        if (to.items[k].kind != ptx::OperandKind::sink) {
            access.results[k] = destination(to.items[k], kind);
        }
    }
}

void Lowering::gradient(const ptx::Operand& from, const TextureAccess& access, std::uint32_t* slots) {
    const bool vector = from.kind == ptx::OperandKind::vector;
    if (vector && from.items.size() < access.dimensions) {
        fail("a gradient lacks components");
    }
    for (std::uint32_t k = 0; k < access.dimensions; ++k) {
        slots[k] = source(vector ? from.items[k] : from, Slot::float32);
    }
}

// Offsets are a vector, or a single value in one dimension. Any other single value is a depth to compare with.
void Lowering::texel_offsets(const ptx::Operand& from, TextureAccess& access) {
    const bool vector = from.kind == ptx::OperandKind::vector;
    if (access.cube || (!vector && access.dimensions != 1)) {
        unsupported();
    }
    if (vector && from.items.size() < access.dimensions) {
        fail("an offset lacks components");
    }
    for (std::uint32_t k = 0; k < access.dimensions; ++k) {
        access.offsets[k] = source(vector ? from.items[k] : from, Slot::bits32);
    }
}

// tex{.level,.grad,.base}.geometry.v4.dtype.ctype d, [handle, coordinates]{, level or gradients}{, offsets}
void Lowering::lower_tex(const ptx::Instruction& from) {
    auto parts = split_opcode(from.opcode);
    std::size_t next = 1;
    const bool level = parts.size() > next && parts[next] == "level";
    const bool grad = parts.size() > next && parts[next] == "grad";
    const bool base = parts.size() > next && parts[next] == "base";
    if (level || grad || base) {
        ++next;
    }
    if (parts.size() != next + 4 || parts[next + 1] != "v4") {
        unsupported();
    }
    const Geometry* geometry = find_geometry(parts[next]);
    const bool known = parts[next + 2] == "f32" || parts[next + 2] == "s32" || parts[next + 2] == "u32";
    if (geometry == nullptr || !known || (parts[next + 3] != "f32" && parts[next + 3] != "s32")) {
        unsupported();
    }
    TextureAccess access;
    access.dimensions = geometry->dimensions;
    access.cube = geometry->cube;
    access.integer_coordinates = parts[next + 3] == "s32";
    texture_results(operand(from, 0), access, Slot::bits32);
    const std::uint32_t handle = texture_address(operand(from, 1), access, geometry->layered);
    std::size_t used = 2;
    if (level) {
        access.level = source(operand(from, used++), access.integer_coordinates ? Slot::bits32 : Slot::float32);
    }
    if (grad) {
        if (geometry->cube) {
            unsupported();
        }
        gradient(operand(from, used++), access, access.along_x);
        gradient(operand(from, used++), access, access.along_y);
    }
    if (from.operands.size() > used) {
        texel_offsets(operand(from, used++), access);
    }
    if (from.operands.size() != used) {
        unsupported();  // depth comparison
    }
    emit_texture("texture.sample", handle, access);
    if (from.operands[0].second < 0) {
        return;
    }
    // `{...}|p`: whether the texels are resident. Only sparse arrays may have others, and those are not supported.
    const std::uint32_t yes = constant(Slot::pred, 1);
    Inst& i = emit("mov.pred");
    i.a = yes, i.d = slot_of_register(from.operands[0].second);
}

// tld4.comp.2d.v4.dtype.f32 d, [handle, coordinates]{, offsets}
void Lowering::lower_tld4(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() != 6 || parts[3] != "v4" || parts[5] != "f32" || from.operands.size() > 3) {
        unsupported();
    }
    const auto component = std::string_view("rgba").find(parts[1]);
    const Geometry* geometry = find_geometry(parts[2]);
    if (component == std::string_view::npos || parts[1].size() != 1) {
        unsupported();
    }
    if (geometry == nullptr || geometry->dimensions != 2) {
        unsupported();
    }
    TextureAccess access;
    access.dimensions = 2;
    access.gathered = static_cast<std::uint8_t>(component);
    texture_results(operand(from, 0), access, Slot::bits32);
    const std::uint32_t handle = texture_address(operand(from, 1), access, geometry->layered);
    if (from.operands.size() > 2) {
        texel_offsets(operand(from, 2), access);
    }
    emit_texture("texture.gather", handle, access);
}

// suld.b.geometry{.cop}{.vec}.dtype.clamp d, [handle, coordinates]; sust.b with swapped operands.
void Lowering::lower_surface(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const bool store = parts[0] == "sust";
    if (parts.size() < 5 || parts[1] != "b") {
        unsupported();
    }
    const Geometry* geometry = find_geometry(parts[2]);
    if (geometry == nullptr || geometry->cube) {
        unsupported();
    }
    TextureAccess access;
    access.dimensions = geometry->dimensions;
    access.integer_coordinates = true;
    access.elements = 1;
    Slot kind = Slot::none;
    for (std::size_t i = 3; i < parts.size(); ++i) {
        const auto part = parts[i];
        if (part == "v2" || part == "v4") {
            access.elements = static_cast<std::uint8_t>(part[1] - '0');
        } else if (part == "b8") {
            access.kind = TextureAccess::Kind::b8, kind = Slot::bits16;
        } else if (part == "b16") {
            access.kind = TextureAccess::Kind::b16, kind = Slot::bits16;
        } else if (part == "b32") {
            access.kind = TextureAccess::Kind::b32, kind = Slot::bits32;
        } else if (part == "b64") {
            access.kind = TextureAccess::Kind::b64, kind = Slot::bits64;
        } else if (part == "trap") {
            access.outside = TextureAccess::Outside::trap;
        } else if (part == "clamp") {
            access.outside = TextureAccess::Outside::clamp;
        } else if (part == "zero") {
            access.outside = TextureAccess::Outside::zero;
        } else if (part != "ca" && part != "cg" && part != "cs" && part != "cv" && part != "wb" && part != "wt") {
            unsupported();
        }
    }
    if (kind == Slot::none) {
        unsupported();
    }
    const ptx::Operand& value = operand(from, store ? 1 : 0);
    const std::uint32_t handle = texture_address(operand(from, store ? 0 : 1), access, geometry->layered);
    if (!store) {
        texture_results(value, access, kind);
    } else if (value.kind == ptx::OperandKind::vector) {
        if (value.items.size() != access.elements) {
            fail("a vector of the wrong length");
        }
        for (std::size_t k = 0; k < value.items.size(); ++k) {
            access.results[k] = source(value.items[k], kind);
        }
    } else {
        if (access.elements != 1) {
            unsupported();
        }
        access.results[0] = source(value, kind);
    }
    emit_texture(store ? "surface.store" : "surface.load", handle, access);
}

void Lowering::lower_texture_query(const ptx::Instruction& from) {
    static constexpr std::string_view kQuestions[] = {"width", "height", "depth", "array_size", "num_mipmap_levels"};
    auto parts = split_opcode(from.opcode);
    const bool of_level = parts.size() == 4 && parts[0] == "txq" && parts[1] == "level";
    if (of_level) {
        parts.erase(parts.begin() + 1);
    }
    if (parts.size() != 3 || parts[2] != "b32") {
        unsupported();
    }
    std::uint8_t which = 0;
    while (which < std::size(kQuestions) && kQuestions[which] != parts[1]) {
        ++which;
    }
    if (of_level && which > 2) {
        unsupported();
    }
    const ptx::Operand& at = operand(from, 1);
    if (which == std::size(kQuestions) || at.kind != ptx::OperandKind::address || at.items.size() != 1) {
        unsupported();
    }
    const std::uint32_t a = texture_object(at.items[0]);
    const std::uint32_t b = of_level ? source(operand(from, 2), Slot::bits32) : kNoSlot;
    const std::uint32_t d = destination(operand(from, 0), Slot::bits32);
    Inst& i = emit("texture.query");
    i.a = a, i.b = b, i.d = d, i.mode = which, i.imm = parts[0] == "suq" ? 1 : 0;
}

}  // namespace gpupool::softgpu
