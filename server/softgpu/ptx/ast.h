// A parsed PTX translation unit. Names of registers, variables and labels are resolved.
//
// Ownership: values. Every string_view points into the parsed text, which must outlive the tree.
// Threads: none. Errors: none.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gpupool::softgpu::ptx {

enum class Space : std::uint8_t { generic, constant, global, local, param, shared };

enum class Type : std::uint8_t {
    none,
    b8,
    b16,
    b32,
    b64,
    b128,
    u8,
    u16,
    u32,
    u64,
    s8,
    s16,
    s32,
    s64,
    f16,
    bf16,
    f16x2,
    bf16x2,
    f32,
    f64,
    pred,
    texref,  // these three only of variables of a module
    surfref,
    samplerref
};

constexpr std::uint32_t kWarpLanes = 32;  // WARP_SZ

// Size of one value; 1 for a predicate.
std::uint32_t width_bytes(Type type) noexcept;
bool is_signed(Type type) noexcept;
// Parses "u32" and similar, without the dot. Returns Type::none if it is not a type.
Type type_from_name(std::string_view name) noexcept;

// A position in an initialiser that contains an address.
struct Relocation {
    std::uint64_t offset_bytes = 0;
    std::uint32_t size_bytes = 8;
    std::string_view symbol;
    std::int64_t addend = 0;
    std::int32_t byte = -1;  // only this byte of the address; -1: all of it
};

struct Variable {
    std::string_view name;
    Space space = Space::generic;
    Type type = Type::none;
    std::uint32_t align_bytes = 1;
    std::uint64_t size_bytes = 0;
    bool external = false;
    bool unsized_array = false;  // `extern __shared__ x[]`: follows static shared memory
    bool visible = false;
    bool weak = false;  // replaced by another definition; also true for tentative ones (.common)
    bool managed = false;
    std::vector<std::uint8_t> initial;  // empty: all zero
    std::vector<Relocation> relocations;
    std::uint32_t line = 0;
};

enum class OperandKind : std::uint8_t {
    none,
    reg,      // index: register
    special,  // name: special register
    integer,  // value
    real32,   // value: the bits
    real64,   // value: the bits
    symbol,   // name (and variable, when it is one of the function's own), value: offset
    address,  // [items[0] + value]
    vector,   // items
    list,     // items: call arguments
    sink,     // _
};

struct Operand {
    OperandKind kind = OperandKind::none;
    bool negated = false;        // !%p
    std::int32_t index = -1;     // register
    std::int32_t second = -1;    // the q of p|q: a register, or -2 for a sink
    std::int32_t variable = -1;  // index into Function::variables if the symbol is local
    std::int64_t value = 0;
    std::string_view name;
    std::string_view selector;  // "b0" of `%r1.b0`, in video instructions
    std::vector<Operand> items;
};

struct Instruction {
    std::string_view opcode;  // the full opcode, such as "ld.global.v4.f32"
    std::vector<Operand> operands;
    std::int32_t guard = -1;  // register
    bool guard_negated = false;
    std::uint32_t scope = 0;
    std::uint32_t line = 0;
};

struct Label {
    std::uint32_t instruction = 0;          // the instruction that follows
    std::vector<std::string_view> targets;  // of a `.branchtargets` list; empty for a plain label
};

struct Scope {
    std::int32_t parent = -1;
    std::unordered_map<std::string_view, Label> labels;
};

struct Function {
    std::string_view name;
    bool entry = false;
    bool defined = false;
    bool external = false;
    bool visible = false;
    bool weak = false;
    std::vector<Variable> params;
    std::vector<Variable> returns;
    std::vector<Type> registers;
    std::vector<Variable> variables;  // .shared, .local and .param variables declared inside
    std::vector<Instruction> body;
    std::vector<Scope> scopes;
    std::uint32_t max_threads = 0;    // .maxntid or .reqntid, as a product; 0: not given
    std::uint32_t min_blocks = 0;     // .minnctapersm; 0: not given
    std::uint32_t max_registers = 0;  // .maxnreg, or what link() derives; 0: not given
    std::uint32_t required_threads[3] = {0, 0, 0};
    std::uint32_t required_cluster[3] = {0, 0, 0};  // blocks
    std::uint32_t line = 0;

    // The label visible from `scope`, or null.
    const Label* find_label(std::uint32_t scope, std::string_view label) const;
};

struct Module {
    std::uint32_t version_major = 0, version_minor = 0;
    std::string_view target;
    std::vector<Variable> variables;
    std::vector<Function> functions;
};

}  // namespace gpupool::softgpu::ptx
