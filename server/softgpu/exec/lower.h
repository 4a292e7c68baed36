// Lowers one PTX function to one CompiledFunction.
//
// Ownership: writes into the given CompiledFunction; reads the module's symbols. Threads: one per function.
// Errors: LoweringError with instruction and line; internal to the folder, compile() turns it into a Result.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "server/softgpu/exec/code.h"
#include "server/softgpu/exec/memory_form.h"
#include "server/softgpu/exec/op_table.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

struct LoweringError {
    std::uint32_t line;
    std::string message;
    bool lacking = false;  // valid PTX that the software GPU lacks; otherwise the text is not PTX
};

// What a name of the module refers to.
struct Symbol {
    enum Kind : std::uint8_t { address, shared, dynamic_shared, function, reference } kind = address;
    // Host address, offset in shared memory, or index of the function or of the texture or surface reference.
    std::uint64_t value = 0;
};

struct ModuleSymbols {
    std::unordered_map<std::string_view, Symbol> names;
    const CompiledFunction* functions = nullptr;  // kernels see their addresses as function pointers
    std::size_t function_count = 0;
};

class Lowering {
  public:
    // `shared_base_bytes`: offset of the function's own shared variables.
    Lowering(const ModuleSymbols& symbols, const ptx::Function& source, CompiledFunction& target,
             std::uint32_t shared_base_bytes);

    void run();

    using Handler = void (Lowering::*)(const ptx::Instruction&);

  private:
    // --- lower.cpp: operands
    [[noreturn]] void fail(std::string message) const;
    [[noreturn]] void lack(std::string message) const;
    [[noreturn]] void unsupported() const;
    std::vector<bool> addressed_formals() const;
    void lay_out_variables();
    void instruction(const ptx::Instruction& from);
    void from_table(const ptx::Instruction& from, const Op& op);
    std::uint32_t slot_of_register(std::int32_t index);
    bool is_wide_register(const ptx::Operand& operand) const;
    std::uint32_t wide_slot(const ptx::Operand& operand);
    std::uint32_t temporary(Slot kind);
    std::uint32_t constant(Slot kind, std::uint64_t bits);
    std::uint64_t immediate_bits(const ptx::Operand& operand, Slot kind) const;
    Slot kind_of_register(std::int32_t index) const;
    std::uint32_t source(const ptx::Operand& operand, Slot kind);
    std::uint32_t destination(const ptx::Operand& operand, Slot kind);
    std::uint32_t predicate_source(const ptx::Operand& operand);
    std::uint32_t special_register(std::string_view name, Slot kind);
    std::uint32_t symbol_address(const ptx::Operand& operand);
    std::uint32_t resized(std::uint32_t slot, Slot from, Slot to, bool sign);
    Inst& emit(const char* op_name);
    Inst& emit(const Op& op);
    Inst& emit(Flow flow);
    const Op& op(std::string_view name) const;
    const ptx::Operand& operand(const ptx::Instruction& from, std::size_t index) const;

    // --- lower_values.cpp
    void lower_mov(const ptx::Instruction& from);
    void lower_wide_mov(const ptx::Operand& to, const ptx::Operand& value);
    void lower_cvt(const ptx::Instruction& from);
    void lower_cvta(const ptx::Instruction& from);
    void lower_isspacep(const ptx::Instruction& from);
    void lower_setp(const ptx::Instruction& from);
    void lower_set(const ptx::Instruction& from);
    void lower_nothing(const ptx::Instruction& from);
    void lower_createpolicy(const ptx::Instruction& from);
    static std::uint8_t boolean_operator(std::string_view name);
    void compared_sources(const ptx::Instruction& from, const Op& compare, bool flush, std::string_view type,
                          std::uint32_t* sources);
    void unpack(const ptx::Operand& vector, const ptx::Operand& value);
    void pack(const ptx::Operand& value, const ptx::Operand& vector);

    // --- lower_memory.cpp
    struct MemoryForm {
        ptx::Type type = ptx::Type::none;
        std::string_view type_name;
        std::uint32_t elements = 1;
        MemorySpace space = MemorySpace::generic;
        bool param = false;
        bool polls = false;
        std::string operation;  // of atom: "add", "cas", "add.noftz"
    };
    MemoryForm memory_form(std::string_view opcode, bool atomic) const;
    void address(const ptx::Operand& from, MemoryForm& form, std::uint32_t& base, std::uint64_t& offset,
                 std::uint8_t& mode);
    void lower_ld(const ptx::Instruction& from);
    void lower_st(const ptx::Instruction& from);
    void lower_atom(const ptx::Instruction& from);
    void lower_vector_atom(const ptx::Instruction& from, MemoryForm& form);
    void lower_fence(const ptx::Instruction& from);
    std::uint32_t halves(const ptx::Operand& operand);
    std::uint32_t vector_slots(const ptx::Operand& operand, ptx::Type type, bool store, Slot& kind);

    // --- lower_texture.cpp
    void lower_tex(const ptx::Instruction& from);
    void lower_tld4(const ptx::Instruction& from);
    void lower_surface(const ptx::Instruction& from);
    void lower_texture_query(const ptx::Instruction& from);
    std::uint32_t texture_object(const ptx::Operand& from);
    std::uint32_t texture_address(const ptx::Operand& from, TextureAccess& access, bool layered);
    void texture_results(const ptx::Operand& to, TextureAccess& access, Slot kind);
    void gradient(const ptx::Operand& from, const TextureAccess& access, std::uint32_t* slots);
    void texel_offsets(const ptx::Operand& from, TextureAccess& access);
    void emit_texture(const char* name, std::uint32_t handle, const TextureAccess& access);

    // --- lower_matrix.cpp
    void lower_mma(const ptx::Instruction& from);
    void lower_wmma(const ptx::Instruction& from);
    void lower_ldmatrix(const ptx::Instruction& from);
    void lower_movmatrix(const ptx::Instruction& from);
    std::vector<std::uint32_t> matrix_slots(const ptx::Operand& from, Element element, bool written);
    void check_fragment(const std::vector<std::uint32_t>& slots, std::uint32_t elements, Element element,
                        bool repeats) const;
    Inst& emit_matrix(const char* name, MatrixForm form);

    // --- lower_async.cpp
    void lower_cp(const ptx::Instruction& from);
    void lower_bulk(const ptx::Instruction& from);
    void lower_mbarrier(const ptx::Instruction& from);
    void lower_st_async(const ptx::Instruction& from);
    void lower_red_async(const ptx::Instruction& from);
    std::uint32_t address_slot(const ptx::Operand& from, MemorySpace space);
    std::uint32_t completed_bytes(const std::vector<std::string_view>& parts) const;

    // --- lower_packed.cpp
    bool lower_half(const ptx::Instruction& from);
    void lower_lop3(const ptx::Instruction& from);
    void lower_alloca(const ptx::Instruction& from);
    void lower_video(const ptx::Instruction& from);
    std::uint32_t computed(std::string_view name, std::initializer_list<std::uint32_t> sources);

    // --- lower_control.cpp
    void lower_bra(const ptx::Instruction& from);
    void lower_brx(const ptx::Instruction& from);
    void lower_call(const ptx::Instruction& from);
    void lower_ret(const ptx::Instruction& from);
    void lower_exit(const ptx::Instruction& from);
    void lower_trap(const ptx::Instruction& from);
    void lower_barrier(const ptx::Instruction& from);
    void lower_nanosleep(const ptx::Instruction& from);
    void lower_mapa(const ptx::Instruction& from);
    void lower_warp(const ptx::Instruction& from);
    void call_parameters(const ptx::Operand& list, std::vector<std::uint32_t>& offsets_bytes,
                         std::vector<std::uint32_t>& sizes_bytes) const;
    std::uint32_t label(const ptx::Instruction& from, const ptx::Operand& to) const;

    struct Placed {
        ptx::Space space = ptx::Space::generic;
        std::uint32_t offset_bytes = 0;
        std::uint32_t size_bytes = 0;
        bool dynamic_shared = false;
    };

    const ModuleSymbols& symbols_;
    const ptx::Function& source_;
    CompiledFunction& target_;
    std::uint32_t shared_base_bytes_;
    const ptx::Instruction* current_ = nullptr;
    std::uint32_t entry_stack_ = kNoSlot;  // of a function that uses alloca: the stack pointer on entry
    std::vector<Placed> variables_;
    std::vector<std::uint32_t> register_slots_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> constant_slots_;  // (bytes, bits) -> index
    std::vector<std::pair<std::uint32_t, std::uint64_t>> constants_;                   // in order of their slots
    std::uint32_t next_slot_ = 0;
    std::uint32_t next_constant_ = 0;
    std::vector<std::uint32_t> starts_;  // PTX instruction -> first lowered one
};

// "ld.global.v4.f32" -> {"ld", "global", "v4", "f32"}.
std::vector<std::string_view> split_opcode(std::string_view opcode);

// Orders the blocks of a lowered function for the interpreter (see warp.h). On entry, branch targets are indices into
// `code`; replaces them by indices into the new order.
void lay_out_blocks(CompiledFunction& function);

}  // namespace gpupool::softgpu
