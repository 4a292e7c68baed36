#include "server/softgpu/exec/lower.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "common/round_up.h"

namespace gpupool::softgpu {
namespace {

// During lowering, constants are numbered from here, since the size of the constants is only known at the end.
constexpr std::uint32_t kConstantFlag = 0x80000000U;
constexpr std::uint32_t kMaxRegisterBytes = std::uint32_t{64} << 20;

std::uint32_t align_up(std::uint64_t value, std::uint64_t alignment) {
    return static_cast<std::uint32_t>(round_up(value, alignment));
}

bool is_wide(Slot kind) {
    return kind == Slot::bits64 || kind == Slot::float64;
}

}  // namespace

std::vector<std::string_view> split_opcode(std::string_view opcode) {
    std::vector<std::string_view> parts;
    for (std::size_t from = 0; from <= opcode.size();) {
        auto dot = opcode.find('.', from);
        if (dot == std::string_view::npos) {
            dot = opcode.size();
        }
        parts.push_back(opcode.substr(from, dot - from));
        from = dot + 1;
    }
    return parts;
}

Lowering::Lowering(const ModuleSymbols& symbols, const ptx::Function& source, CompiledFunction& target,
                   std::uint32_t shared_base_bytes)
    : symbols_(symbols), source_(source), target_(target), shared_base_bytes_(shared_base_bytes) {}

void Lowering::fail(std::string message) const {
    throw LoweringError{current_ != nullptr ? current_->line : source_.line, std::move(message)};
}

void Lowering::lack(std::string message) const {
    throw LoweringError{current_ != nullptr ? current_->line : source_.line, std::move(message), true};
}

void Lowering::unsupported() const {
    // PTX instructions that are not in the table of operations. Any other instruction is an error in the text.
    static constexpr std::string_view kMnemonics[] = {
        "alloca",    "atom", "bar",      "barrier", "brx",      "call",    "clusterlaunchcontrol",
        "cp",        "cvt",  "cvta",     "elect",   "fence",    "fma",     "isspacep",
        "istypep",   "ld",   "ldmatrix", "match",   "mbarrier", "membar",  "min",
        "max",       "add",  "sub",      "mul",     "mma",      "mov",     "multimem",
        "movmatrix", "red",  "redux",    "set",     "setp",     "shfl",    "st",
        "stmatrix",  "suld", "suq",      "sured",   "sust",     "tcgen05", "tensormap",
        "tex",       "tld4", "txq",      "vadd",    "vadd2",    "vadd4",   "vmad",
        "vote",      "vset", "wgmma",    "wmma"};
    auto message =
        fmt::format("the software GPU does not support the instruction '{}' (in '{}')", current_->opcode, source_.name);
    const auto base = current_->opcode.substr(0, current_->opcode.find('.'));
    for (const auto mnemonic : kMnemonics) {
        if (base == mnemonic) {
            lack(std::move(message));
        }
    }
    fail(std::move(message));
}

// Parameters of a function whose address is taken. A pointer to one is a local address (`mov.b64 %rd1, param;
// cvta.local.u64`), through which the function may write.
std::vector<bool> Lowering::addressed_formals() const {
    std::vector<bool> result(source_.params.size() + source_.returns.size(), false);
    if (source_.entry) {
        return result;
    }
    for (const auto& from : source_.body) {
        for (const auto& operand : from.operands) {
            const bool formal = operand.kind == ptx::OperandKind::symbol && operand.variable >= 0 &&
                                static_cast<std::size_t>(operand.variable) < result.size();
            if (formal) {
                result[static_cast<std::size_t>(operand.variable)] = true;
            }
        }
    }
    return result;
}

void Lowering::lay_out_variables() {
    std::uint64_t local_bytes = 0;
    std::uint64_t shared_bytes = shared_base_bytes_;
    std::uint64_t area_bytes = 0;
    const std::size_t formals = source_.params.size() + source_.returns.size();
    const auto addressed = addressed_formals();
    for (std::size_t i = 0; i < source_.variables.size(); ++i) {
        const ptx::Variable& variable = source_.variables[i];
        Placed placed{variable.space, 0, static_cast<std::uint32_t>(variable.size_bytes), variable.unsized_array};
        const std::uint32_t align = std::max<std::uint32_t>(variable.align_bytes, 1);
        if (i < formals) {
            auto& info = i < source_.params.size() ? target_.params[i] : target_.returns[i - source_.params.size()];
            if (addressed[i]) {
                info.local = true;
                info.offset_bytes = align_up(local_bytes, std::max<std::uint32_t>(align, 8));
                local_bytes = info.offset_bytes + variable.size_bytes;
                placed.space = ptx::Space::local;
                placed.offset_bytes = info.offset_bytes;
                variables_.push_back(placed);
                continue;
            }
            placed.offset_bytes = info.offset_bytes;
            if (!source_.entry) {
                area_bytes = std::max<std::uint64_t>(area_bytes, info.offset_bytes + info.size_bytes);
            }
        } else if (variable.space == ptx::Space::local) {
            placed.offset_bytes = align_up(local_bytes, align);
            local_bytes = placed.offset_bytes + variable.size_bytes;
        } else if (variable.space == ptx::Space::shared) {
            placed.offset_bytes = align_up(shared_bytes, align);
            if (!variable.unsized_array) {
                shared_bytes = placed.offset_bytes + variable.size_bytes;
            }
        } else {
            placed.offset_bytes = align_up(area_bytes, std::max<std::uint32_t>(align, 8));
            area_bytes = placed.offset_bytes + variable.size_bytes;
        }
        if (local_bytes > (1U << 24) || shared_bytes > (1U << 24) || area_bytes > (1U << 24)) {
            fail(fmt::format("'{}' declares more than 16 MiB of variables", source_.name));
        }
        variables_.push_back(placed);
    }
    target_.local_bytes = align_up(local_bytes, 16);
    target_.shared_bytes = static_cast<std::uint32_t>(shared_bytes);
    target_.area_stride_bytes = align_up(area_bytes, 16);
}

void Lowering::run() {
    register_slots_.assign(source_.registers.size(), kNoSlot);
    lay_out_variables();
    starts_.reserve(source_.body.size() + 1);
    for (const auto& from : source_.body) {
        if (!source_.entry && from.opcode.substr(0, 6) == "alloca") {
            entry_stack_ = temporary(Slot::bits64);
        }
        if (from.opcode.substr(0, 6) == "alloca") {
            target_.may_recurse = true;  // its stack has no static bound
        }
        if (entry_stack_ != kNoSlot) {
            break;
        }
    }
    if (entry_stack_ != kNoSlot) {
        emit("stack.save").d = entry_stack_;
    }
    for (const auto& from : source_.body) {
        starts_.push_back(static_cast<std::uint32_t>(target_.code.size()));
        instruction(from);
    }
    starts_.push_back(static_cast<std::uint32_t>(target_.code.size()));
    current_ = nullptr;
    if (entry_stack_ != kNoSlot) {
        emit("stack.restore").a = entry_stack_;
    }
    emit(source_.entry ? Flow::exit : Flow::ret).line = source_.line;  // a body may end without an exit
    // Labels are PTX indices up to here. Constants go to the front of the frame.
    const std::uint32_t constant_bytes = align_up(next_constant_, 64);
    target_.constants.assign(constant_bytes, 0);
    std::vector<std::uint32_t> offsets;
    std::uint32_t at = 0;
    for (const auto& [bytes, bits] : constants_) {
        offsets.push_back(at);
        if (bytes == 4 * kLaneCount || bytes == 8 * kLaneCount || bytes == 2 * kLaneCount) {
            const std::uint32_t element = bytes / kLaneCount;
            for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
                std::memcpy(target_.constants.data() + at + lane * element, &bits, element);
            }
        } else {
            std::memcpy(target_.constants.data() + at, &bits, 4);
        }
        at += align_up(bytes, 64);
    }
    const auto fix = [&](std::uint32_t& slot) {
        if (slot == kNoSlot) {
            return;
        }
        slot = (slot & kConstantFlag) != 0 ? offsets[slot & ~kConstantFlag] : slot + constant_bytes;
    };
    for (Inst& i : target_.code) {
        if ((i.lists & kListAtD) == 0) {
            fix(i.d);
        }
        if ((i.lists & kListAtB) == 0) {
            fix(i.b);
        }
        fix(i.a), fix(i.c), fix(i.e), fix(i.guard);
        if (i.flow == Flow::warp_sync) {
            fix(i.extra);
        }
        if (i.flow == Flow::jump || i.flow == Flow::branch) {
            i.target = starts_[i.target];
        }
    }
    for (auto& slot : target_.aux) {
        fix(slot);
    }
    for (auto& site : target_.calls) {
        fix(site.pointer);
    }
    for (auto& form : target_.matrices) {
        for (auto* slots : {&form.a_slots, &form.b_slots, &form.c_slots, &form.d_slots}) {
            for (auto& slot : *slots) {
                fix(slot);
            }
        }
        fix(form.stride);
    }
    for (auto& access : target_.textures) {
        for (auto& slot : access.results) {
            fix(slot);
        }
        for (auto& slot : access.coordinates) {
            fix(slot);
        }
        for (auto& slot : access.offsets) {
            fix(slot);
        }
        for (auto& slot : access.along_x) {
            fix(slot);
        }
        for (auto& slot : access.along_y) {
            fix(slot);
        }
        fix(access.layer), fix(access.level);
    }
    for (auto& table : target_.tables) {
        for (auto& target : table) {
            target = starts_[target];
        }
    }
    target_.register_bytes = align_up(constant_bytes + next_slot_, 64);
    target_.register_count = std::min<std::uint32_t>(target_.max_registers, 16 + next_slot_ / (4 * kLaneCount) / 4);
    lay_out_blocks(target_);
}

void Lowering::instruction(const ptx::Instruction& from) {
    static const std::unordered_map<std::string_view, Handler> handlers = {
        {"mov", &Lowering::lower_mov},
        {"cvt", &Lowering::lower_cvt},
        {"cvta", &Lowering::lower_cvta},
        {"isspacep", &Lowering::lower_isspacep},
        {"setp", &Lowering::lower_setp},
        {"set", &Lowering::lower_set},
        {"ld", &Lowering::lower_ld},
        {"ldu", &Lowering::lower_ld},
        {"st", &Lowering::lower_st},
        {"atom", &Lowering::lower_atom},
        {"red", &Lowering::lower_atom},
        {"membar", &Lowering::lower_fence},
        {"fence", &Lowering::lower_fence},
        {"bra", &Lowering::lower_bra},
        {"brx", &Lowering::lower_brx},
        {"call", &Lowering::lower_call},
        {"ret", &Lowering::lower_ret},
        {"exit", &Lowering::lower_exit},
        {"trap", &Lowering::lower_trap},
        {"brkpt", &Lowering::lower_trap},
        {"bar", &Lowering::lower_barrier},
        {"barrier", &Lowering::lower_barrier},
        {"nanosleep", &Lowering::lower_nanosleep},
        {"mapa", &Lowering::lower_mapa},
        {"getctarank", &Lowering::lower_mapa},
        {"shfl", &Lowering::lower_warp},
        {"vote", &Lowering::lower_warp},
        {"match", &Lowering::lower_warp},
        {"redux", &Lowering::lower_warp},
        {"elect", &Lowering::lower_warp},
        {"tex", &Lowering::lower_tex},
        {"alloca", &Lowering::lower_alloca},
        {"stacksave", &Lowering::lower_alloca},
        {"stackrestore", &Lowering::lower_alloca},
        {"createpolicy", &Lowering::lower_createpolicy},
        {"cp", &Lowering::lower_cp},
        {"lop3", &Lowering::lower_lop3},
        {"mbarrier", &Lowering::lower_mbarrier},
        {"mma", &Lowering::lower_mma},
        {"wmma", &Lowering::lower_wmma},
        {"ldmatrix", &Lowering::lower_ldmatrix},
        {"stmatrix", &Lowering::lower_ldmatrix},
        {"movmatrix", &Lowering::lower_movmatrix},
        {"tld4", &Lowering::lower_tld4},
        {"suld", &Lowering::lower_surface},
        {"sust", &Lowering::lower_surface},
        {"txq", &Lowering::lower_texture_query},
        {"suq", &Lowering::lower_texture_query},
        {"prefetch", &Lowering::lower_nothing},
        {"prefetchu", &Lowering::lower_nothing},
        {"pmevent", &Lowering::lower_nothing},
        {"setmaxnreg", &Lowering::lower_nothing},
        {"griddepcontrol", &Lowering::lower_nothing},
        {"applypriority", &Lowering::lower_nothing},
        {"discard", &Lowering::lower_nothing},
    };
    current_ = &from;
    const auto base = from.opcode.substr(0, from.opcode.find('.'));
    const std::size_t first = target_.code.size();
    if (const auto found = handlers.find(base); found != handlers.end()) {
        // bar.warp.sync concerns a warp, not the block.
        if (from.opcode == "bar.warp.sync") {
            lower_warp(from);
        } else {
            (this->*found->second)(from);
        }
    } else if (const Op* found_op = op_table().find(from.opcode)) {
        from_table(from, *found_op);
    } else if (base.size() > 1 && base[0] == 'v') {
        lower_video(from);
    } else if (!lower_half(from)) {
        unsupported();
    }
    const std::uint32_t guard = from.guard < 0 ? kNoSlot : slot_of_register(from.guard);
    for (std::size_t i = first; i < target_.code.size(); ++i) {
        target_.code[i].line = from.line;
        target_.code[i].guard = guard;
        target_.code[i].guard_negated = from.guard_negated;
    }
}

void Lowering::from_table(const ptx::Instruction& from, const Op& op) {
    std::uint32_t sources[4] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    std::size_t next = op.d == Slot::none ? 0 : 1;
    for (std::size_t i = 0; i < 4 && op.sources[i] != Slot::none; ++i) {
        sources[i] = source(operand(from, next++), op.sources[i]);
    }
    if (from.operands.size() != next) {
        fail(fmt::format("'{}' takes {} operands, not {}", from.opcode, next, from.operands.size()));
    }
    const std::uint32_t d = op.d == Slot::none ? kNoSlot : destination(from.operands[0], op.d);
    Inst& i = emit(op);
    i.d = d;
    i.a = sources[0], i.b = sources[1], i.c = sources[2], i.e = sources[3];
}

const ptx::Operand& Lowering::operand(const ptx::Instruction& from, std::size_t index) const {
    if (index >= from.operands.size()) {
        fail(fmt::format("'{}' lacks an operand", from.opcode));
    }
    return from.operands[index];
}

Slot Lowering::kind_of_register(std::int32_t index) const {
    switch (source_.registers[static_cast<std::size_t>(index)]) {
        case ptx::Type::pred: return Slot::pred;
        case ptx::Type::f32: return Slot::float32;
        case ptx::Type::f64: return Slot::float64;
        default: break;
    }
    switch (ptx::width_bytes(source_.registers[static_cast<std::size_t>(index)])) {
        case 1:
        case 2: return Slot::bits16;
        case 4: return Slot::bits32;
        case 8: return Slot::bits64;
        default: lack(fmt::format("'{}' of a 128-bit register is not supported by the software GPU", current_->opcode));
    }
}

std::uint32_t Lowering::slot_of_register(std::int32_t index) {
    std::uint32_t& slot = register_slots_[static_cast<std::size_t>(index)];
    if (slot == kNoSlot) {
        slot = temporary(kind_of_register(index));
    }
    return slot;
}

bool Lowering::is_wide_register(const ptx::Operand& operand) const {
    return operand.kind == ptx::OperandKind::reg &&
           source_.registers[static_cast<std::size_t>(operand.index)] == ptx::Type::b128;
}

// A 128-bit register is two adjacent slots of 64 bits.
std::uint32_t Lowering::wide_slot(const ptx::Operand& operand) {
    if (!is_wide_register(operand)) {
        fail(fmt::format("'{}' needs 128-bit registers", current_->opcode));
    }
    std::uint32_t& slot = register_slots_[static_cast<std::size_t>(operand.index)];
    if (slot == kNoSlot) {
        slot = temporary(Slot::bits64);
        temporary(Slot::bits64);
    }
    return slot;
}

std::uint32_t Lowering::temporary(Slot kind) {
    const std::uint32_t bytes = slot_bytes(kind);
    // Values start at cache lines; predicates are packed.
    const std::uint32_t at = align_up(next_slot_, bytes >= 64 ? 64 : 4);
    next_slot_ = at + bytes;
    if (next_slot_ > kMaxRegisterBytes) {
        fail(fmt::format("'{}' needs too many registers", source_.name));
    }
    return at;
}

std::uint32_t Lowering::constant(Slot kind, std::uint64_t bits) {
    const std::uint32_t bytes = slot_bytes(kind);
    if (kind == Slot::pred) {
        bits = bits != 0 ? kAllLanes : 0;
    }
    if (bytes == 4 * kLaneCount) {
        bits &= 0xFFFFFFFF;
    }
    if (bytes == 2 * kLaneCount) {
        bits &= 0xFFFF;
    }
    const auto [at, fresh] = constant_slots_.try_emplace({bytes, bits}, static_cast<std::uint32_t>(constants_.size()));
    if (fresh) {
        constants_.emplace_back(bytes, bits);
        next_constant_ += align_up(bytes, 64);
        if (next_constant_ > kMaxRegisterBytes) {
            fail(fmt::format("'{}' has too many constants", source_.name));
        }
    }
    return at->second | kConstantFlag;
}

std::uint64_t Lowering::immediate_bits(const ptx::Operand& operand, Slot kind) const {
    const auto bits = static_cast<std::uint64_t>(operand.value);
    const bool is32 = kind == Slot::float32 || kind == Slot::bits32;
    if (operand.kind == ptx::OperandKind::real64 && is32) {
        return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    }
    if (operand.kind == ptx::OperandKind::real32 && is_wide(kind)) {
        return std::bit_cast<std::uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
    }
    if (operand.kind == ptx::OperandKind::integer && kind == Slot::float32) {
        return std::bit_cast<std::uint32_t>(static_cast<float>(operand.value));
    }
    if (operand.kind == ptx::OperandKind::integer && kind == Slot::float64) {
        return std::bit_cast<std::uint64_t>(static_cast<double>(operand.value));
    }
    return bits;
}

std::uint32_t Lowering::source(const ptx::Operand& operand, Slot kind) {
    switch (operand.kind) {
        case ptx::OperandKind::reg: {
            if (kind == Slot::pred) {
                return predicate_source(operand);
            }
            if (!operand.selector.empty() && current_->opcode[0] != 'v') {
                fail(fmt::format("'{}' cannot be split into parts", operand.name));
            }
            const Slot has = kind_of_register(operand.index);
            if (slot_bytes(has) != slot_bytes(kind)) {
                fail(fmt::format("'{}' has the wrong size for '{}'", operand.name, current_->opcode));
            }
            return slot_of_register(operand.index);
        }
        case ptx::OperandKind::integer:
        case ptx::OperandKind::real32:
        case ptx::OperandKind::real64: return constant(kind, immediate_bits(operand, kind));
        case ptx::OperandKind::special: return special_register(operand.name, kind);
        case ptx::OperandKind::symbol: return resized(symbol_address(operand), Slot::bits64, kind, false);
        default: fail(fmt::format("an operand of '{}' has the wrong form", current_->opcode));
    }
}

std::uint32_t Lowering::predicate_source(const ptx::Operand& operand) {
    if (kind_of_register(operand.index) != Slot::pred) {
        fail(fmt::format("'{}' is not a predicate", operand.name));
    }
    const std::uint32_t slot = slot_of_register(operand.index);
    if (!operand.negated) {
        return slot;
    }
    Inst& i = emit("not.pred");
    i.a = slot;
    const std::uint32_t result = temporary(Slot::pred);
    target_.code.back().d = result;
    return result;
}

std::uint32_t Lowering::destination(const ptx::Operand& operand, Slot kind) {
    if (operand.kind == ptx::OperandKind::sink) {
        return temporary(kind);
    }
    if (operand.kind != ptx::OperandKind::reg || operand.negated) {
        fail(fmt::format("the destination of '{}' is not a register", current_->opcode));
    }
    const Slot has = kind_of_register(operand.index);
    if (slot_bytes(has) != slot_bytes(kind)) {
        fail(fmt::format("'{}' has the wrong size for '{}'", operand.name, current_->opcode));
    }
    return slot_of_register(operand.index);
}

std::uint32_t Lowering::special_register(std::string_view name, Slot kind) {
    const Op* found = op_table().find(fmt::format("sreg.{}", name));
    if (found == nullptr) {
        fail(fmt::format("'{}' is neither a declared register nor a special register of the software GPU", name));
    }
    if (name.substr(0, 14) == "%reserved_smem") {
        target_.uses_reserved_shared = true;
    }
    const std::uint32_t result = temporary(found->d);
    emit(*found).d = result;
    return resized(result, found->d, kind, false);
}

std::uint32_t Lowering::symbol_address(const ptx::Operand& operand) {
    const auto addend = static_cast<std::uint64_t>(operand.value);
    const auto at_run_time = [this](const char* op_name, std::uint64_t offset_bytes) {
        const std::uint32_t result = temporary(Slot::bits64);
        Inst& i = emit(op_name);
        i.d = result;
        i.imm = offset_bytes;
        return result;
    };
    if (operand.variable >= 0) {
        const Placed& placed = variables_[static_cast<std::size_t>(operand.variable)];
        if (placed.dynamic_shared) {
            return at_run_time("dynamic_shared_address", addend);
        }
        if (placed.space == ptx::Space::local) {
            return at_run_time("local_address", placed.offset_bytes + addend);
        }
        return constant(Slot::bits64, placed.offset_bytes + addend);
    }
    const auto found = symbols_.names.find(operand.name);
    if (found == symbols_.names.end()) {
        fail(fmt::format("'{}' is not declared", operand.name));
    }
    const Symbol& symbol = found->second;
    if (symbol.kind == Symbol::reference) {
        lack(fmt::format("the address of the reference '{}' is not supported", operand.name));
    }
    if (symbol.kind == Symbol::dynamic_shared) {
        return at_run_time("dynamic_shared_address", addend);
    }
    if (symbol.kind == Symbol::function) {
        return constant(Slot::bits64, reinterpret_cast<std::uint64_t>(symbols_.functions + symbol.value));
    }
    return constant(Slot::bits64, symbol.value + addend);
}

std::uint32_t Lowering::resized(std::uint32_t slot, Slot from, Slot to, bool sign) {
    const auto bits = [](Slot kind) { return slot_bytes(kind) / kLaneCount * 8; };
    if (bits(from) == bits(to)) {
        return slot;
    }
    const std::uint32_t result = temporary(to);
    Inst& i = bits(from) < bits(to) ? emit(op(fmt::format("widen.{}{}.u{}", sign ? 's' : 'u', bits(from), bits(to))))
                                    : emit(op(fmt::format("narrow.u{}.u{}", bits(from), bits(to))));
    i.a = slot;
    i.d = result;
    return result;
}

Inst& Lowering::emit(const char* op_name) {
    return emit(op(op_name));
}

Inst& Lowering::emit(const Op& op) {
    Inst i;
    i.fn = op.fn;
    i.flow = op.flow;
    i.line = current_ != nullptr ? current_->line : 0;
    target_.code.push_back(i);
    return target_.code.back();
}

Inst& Lowering::emit(Flow flow) {
    Op op;
    op.flow = flow;
    return emit(op);
}

const Op& Lowering::op(std::string_view name) const {
    const Op* found = op_table().find(name);
    if (found == nullptr) {
        unsupported();
    }
    return *found;
}

}  // namespace gpupool::softgpu
