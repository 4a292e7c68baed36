#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

std::uint32_t width_bytes(Type type) noexcept {
    switch (type) {
        case Type::none: return 0;
        case Type::pred:
        case Type::b8:
        case Type::u8:
        case Type::s8: return 1;
        case Type::b16:
        case Type::u16:
        case Type::s16:
        case Type::f16:
        case Type::bf16: return 2;
        case Type::b32:
        case Type::u32:
        case Type::s32:
        case Type::f16x2:
        case Type::bf16x2:
        case Type::f32: return 4;
        case Type::b64:
        case Type::u64:
        case Type::s64:
        case Type::texref:
        case Type::surfref:
        case Type::samplerref:
        case Type::f64: return 8;
        case Type::b128: return 16;
    }
    return 0;
}

bool is_signed(Type type) noexcept {
    return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64;
}

Type type_from_name(std::string_view name) noexcept {
    static constexpr struct {
        std::string_view name;
        Type type;
    } kNames[] = {{"b8", Type::b8},
                  {"b16", Type::b16},
                  {"b32", Type::b32},
                  {"b64", Type::b64},
                  {"b128", Type::b128},
                  {"u8", Type::u8},
                  {"u16", Type::u16},
                  {"u32", Type::u32},
                  {"u64", Type::u64},
                  {"s8", Type::s8},
                  {"s16", Type::s16},
                  {"s32", Type::s32},
                  {"s64", Type::s64},
                  {"f16", Type::f16},
                  {"bf16", Type::bf16},
                  {"f16x2", Type::f16x2},
                  {"bf16x2", Type::bf16x2},
                  {"f32", Type::f32},
                  {"f64", Type::f64},
                  {"pred", Type::pred},
                  {"texref", Type::texref},
                  {"surfref", Type::surfref},
                  {"samplerref", Type::samplerref}};
    for (const auto& entry : kNames) {
        if (entry.name == name) {
            return entry.type;
        }
    }
    return Type::none;
}

const Label* Function::find_label(std::uint32_t scope, std::string_view label) const {
    for (auto at = static_cast<std::int32_t>(scope); at >= 0; at = scopes[static_cast<std::size_t>(at)].parent) {
        const auto& labels = scopes[static_cast<std::size_t>(at)].labels;
        if (auto found = labels.find(label); found != labels.end()) {
            return &found->second;
        }
    }
    return nullptr;
}

}  // namespace gpupool::softgpu::ptx
