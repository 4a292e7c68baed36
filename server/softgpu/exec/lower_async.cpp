// Lowering of asynchronous copies and mbarriers.
#include "server/softgpu/exec/async_form.h"
#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

bool has(const std::vector<std::string_view>& parts, std::string_view part) {
    for (const auto candidate : parts) {
        if (candidate == part) {
            return true;
        }
    }
    return false;
}

std::string_view space_of(std::string_view part) {
    return part.substr(0, part.find("::"));
}

}  // namespace

// Computes the whole address into a 64-bit slot.
std::uint32_t Lowering::address_slot(const ptx::Operand& from, MemorySpace space) {
    MemoryForm form;
    form.space = space;
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(from, form, base, offset, mode);
    if (base == kNoSlot) {
        return constant(Slot::bits64, offset);
    }
    if ((mode & kAddressIs32Bits) != 0) {
        base = resized(base, Slot::bits32, Slot::bits64, false);
    }
    if (offset == 0) {
        return base;
    }
    const std::uint32_t distance = constant(Slot::bits64, offset);
    const std::uint32_t result = temporary(Slot::bits64);
    Inst& i = emit("add.u64");
    i.a = base, i.b = distance, i.d = result;
    return result;
}

void Lowering::lower_mbarrier(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() < 2) {
        unsupported();
    }
    const auto what = parts[1];
    if (what == "pending_count") {
        return from_table(from, op("mbarrier.pending_count.b64"));
    }
    MemoryForm form;
    for (std::size_t i = 2; i < parts.size(); ++i) {
        if (space_of(parts[i]) == "shared") {
            form.space = MemorySpace::shared;
        }
    }
    const bool tests = what == "test_wait" || what == "try_wait";
    const bool arrives = what == "arrive" || what == "arrive_drop";
    if (!tests && !arrives && what != "init" && what != "inval" && what != "expect_tx" && what != "complete_tx") {
        unsupported();
    }
    form.polls = tests;
    const std::size_t at = tests || arrives ? 1 : 0;
    std::uint32_t base = kNoSlot;
    std::uint64_t offset = 0;
    std::uint8_t mode = 0;
    address(operand(from, at), form, base, offset, mode);
    std::uint32_t b = kNoSlot, c = kNoSlot, d = kNoSlot, extra = 0;
    const char* name = "mbarrier.inval";
    if (what == "init") {
        name = "mbarrier.init";
        b = source(operand(from, 1), Slot::bits32);
    } else if (what == "expect_tx" || what == "complete_tx") {
        name = "mbarrier.bytes";
        b = source(operand(from, 1), Slot::bits32);
        extra = what == "complete_tx" ? async_form::kCompletes : 0;
    } else if (arrives) {
        name = "mbarrier.arrive";
        if (from.operands.size() > 2) {
            (has(parts, "expect_tx") ? c : b) = source(from.operands[2], Slot::bits32);
        }
        if (from.operands[0].kind != ptx::OperandKind::sink) {
            d = destination(from.operands[0], Slot::bits64);
        }
        extra = what == "arrive_drop" ? async_form::kDrops : 0;
    } else if (tests) {
        name = "mbarrier.test";
        const bool parity = has(parts, "parity");
        b = source(operand(from, 2), parity ? Slot::bits32 : Slot::bits64);
        d = destination(operand(from, 0), Slot::pred);
        extra = parity ? async_form::kByParity : 0;
    }
    Inst& i = emit(name);
    i.a = base, i.imm = offset, i.mode = mode, i.b = b, i.c = c, i.d = d, i.extra = extra;
}

void Lowering::lower_cp(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    if (parts.size() > 3 && parts[1] == "reduce" && parts[2] == "async" && parts[3] == "bulk") {
        return lower_bulk(from);
    }
    if (parts.size() < 3 || parts[1] != "async") {
        unsupported();
    }
    if (parts[2] == "commit_group" || parts[2] == "wait_group" || parts[2] == "wait_all") {
        return;
    }
    if (parts[2] == "bulk") {
        return lower_bulk(from);
    }
    if (parts[2] == "mbarrier") {
        MemoryForm form;
        for (const auto part : parts) {
            if (space_of(part) == "shared") {
                form.space = MemorySpace::shared;
            }
        }
        std::uint32_t base = kNoSlot;
        std::uint64_t offset = 0;
        std::uint8_t mode = 0;
        address(operand(from, 0), form, base, offset, mode);
        Inst& i = emit("mbarrier.copy_arrive");
        i.a = base, i.imm = offset, i.mode = mode, i.extra = has(parts, "noinc") ? async_form::kCounted : 0;
        return;
    }
    if (parts[2] != "ca" && parts[2] != "cg") {
        unsupported();
    }
    const ptx::Operand& size = operand(from, 2);
    const bool good =
        size.kind == ptx::OperandKind::integer && (size.value == 4 || size.value == 8 || size.value == 16);
    if (!good) {
        fail("cp.async copies 4, 8 or 16 bytes");
    }
    std::size_t operands = from.operands.size();
    if (has(parts, "L2::cache_hint")) {
        --operands;
    }
    std::uint32_t c = kNoSlot, e = kNoSlot;
    if (operands > 3) {
        const ptx::Operand& last = from.operands[3];
        const bool ignore = last.kind == ptx::OperandKind::reg && kind_of_register(last.index) == Slot::pred;
        (ignore ? e : c) = source(last, ignore ? Slot::pred : Slot::bits32);
    }
    const std::uint32_t to = address_slot(operand(from, 0), MemorySpace::shared);
    const std::uint32_t source_address = address_slot(operand(from, 1), MemorySpace::global);
    Inst& i = emit("async.copy");
    i.a = to, i.b = source_address, i.c = c, i.e = e, i.imm = static_cast<std::uint64_t>(size.value);
    i.mode = static_cast<std::uint8_t>(MemorySpace::shared);
}

// cp.async.bulk.dst.src.completion [dst], [src], size{, [mbarrier]}
// cp.reduce.async.bulk.dst.src.completion{.L2::cache_hint}.operation.type, likewise
void Lowering::lower_bulk(const ptx::Instruction& from) {
    auto parts = split_opcode(from.opcode);
    std::string name = "async.bulk";
    if (parts[1] == "reduce") {
        parts.erase(parts.begin() + 1);
        std::size_t k = 5;
        while (k < parts.size() && (parts[k] == "bulk_group" || parts[k].find("::") != std::string_view::npos)) {
            ++k;
        }
        name = "bulk";
        for (; k < parts.size(); ++k) {
            name += "." + std::string(parts[k]);
        }
    }
    if (parts.size() > 3 && (parts[3] == "commit_group" || parts[3] == "wait_group" || parts[3] == "prefetch")) {
        if (parts.size() > 4 && parts[4] == "tensor") {
            unsupported();
        }
        return;
    }
    if (parts.size() < 6 || has(parts, "multicast::cluster") || has(parts, "tensor")) {
        unsupported();
    }
    const auto to_space = space_of(parts[3]), from_space = space_of(parts[4]);
    const auto known = [](std::string_view space) { return space == "shared" || space == "global"; };
    if (!known(to_space) || !known(from_space)) {
        unsupported();
    }
    const bool counts = has(parts, "mbarrier::complete_tx::bytes");
    if (!counts && !has(parts, "bulk_group")) {
        unsupported();
    }
    const auto space = [](std::string_view name) {
        return name == "shared" ? MemorySpace::shared : MemorySpace::global;
    };
    const std::uint32_t a = address_slot(operand(from, 0), space(to_space));
    const std::uint32_t b = address_slot(operand(from, 1), space(from_space));
    const std::uint32_t c = source(operand(from, 2), Slot::bits32);
    const std::uint32_t e = counts ? address_slot(operand(from, 3), MemorySpace::shared) : kNoSlot;
    Inst& i = emit(op(name));
    i.a = a, i.b = b, i.c = c, i.e = e;
    i.extra =
        (to_space == "shared" ? async_form::kToShared : 0) | (from_space == "shared" ? async_form::kFromShared : 0);
}

// The size of an element of an instruction that completes an mbarrier's bytes.
std::uint32_t Lowering::completed_bytes(const std::vector<std::string_view>& parts) const {
    const std::uint32_t bytes = ptx::width_bytes(ptx::type_from_name(parts.back()));
    if (!has(parts, "mbarrier::complete_tx::bytes") || (bytes != 4 && bytes != 8)) {
        unsupported();
    }
    return bytes;
}

// st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [a], b, [mbarrier]
void Lowering::lower_st_async(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const std::uint32_t bytes = completed_bytes(parts);
    const ptx::Operand& value = operand(from, 1);
    const Slot kind = bytes == 4 ? Slot::bits32 : Slot::bits64;
    std::vector<std::uint32_t> slots;
    if (value.kind == ptx::OperandKind::vector) {
        for (const auto& item : value.items) {
            slots.push_back(source(item, kind));
        }
    } else {
        slots.push_back(source(value, kind));
    }
    const std::uint32_t a = address_slot(operand(from, 0), MemorySpace::shared);
    const std::uint32_t e = address_slot(operand(from, 2), MemorySpace::shared);
    const auto first = static_cast<std::uint32_t>(target_.aux.size());
    target_.aux.insert(target_.aux.end(), slots.begin(), slots.end());
    Inst& i = emit("async.store");
    i.a = a, i.e = e, i.b = first, i.lists = kListAtB;
    i.extra = bytes | static_cast<std::uint32_t>(slots.size()) << 8;
}

// red.async{.sem}{.scope}{.ss}.mbarrier::complete_tx::bytes.operation.type [a], b, [mbarrier]
void Lowering::lower_red_async(const ptx::Instruction& from) {
    const auto parts = split_opcode(from.opcode);
    const std::uint32_t bytes = completed_bytes(parts);
    const Op& found = op("atom." + std::string(parts[parts.size() - 2]) + "." + std::string(parts.back()));
    if (found.sources[1] != Slot::none) {
        unsupported();
    }
    MemoryForm form;
    form.space = MemorySpace::shared;
    const auto emit_at = [&](std::size_t k, const Op& what, std::uint32_t b) -> Inst& {
        std::uint32_t base = kNoSlot;
        std::uint64_t offset = 0;
        std::uint8_t mode = 0;
        address(operand(from, k), form, base, offset, mode);
        Inst& i = emit(what);
        i.a = base, i.imm = offset, i.mode = mode, i.b = b;
        return i;
    };
    emit_at(0, found, source(operand(from, 1), found.sources[0])).d = kNoSlot;
    emit_at(2, op("mbarrier.bytes"), constant(Slot::bits32, bytes)).extra = async_form::kCompletes;
}

}  // namespace gpupool::softgpu
