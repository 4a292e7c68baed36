#include "server/softgpu/exec/compile.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>

#include "common/round_up.h"
#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/exec/lower.h"
#include "server/softgpu/ptx/link.h"
#include "server/softgpu/ptx/parser.h"

namespace gpupool::softgpu {
namespace {

// Local memory per thread of a recursive or indirect call chain, unless the program requests more.
constexpr std::uint32_t kRecursiveStackBytes = 64U << 10;

// Limits of ptxas.
constexpr std::uint64_t kMaxConstantBytes = 64U << 10;
constexpr std::uint32_t kMaxParamBytes = 32764, kMaxParamBytesBeforePtx81 = 4352;
constexpr std::uint32_t kMostStaticSharedBytes = 48U << 10;

// The number in "sm_75" or "sm_90a".
std::uint32_t architecture_of(std::string_view target) {
    std::uint32_t number = 0;
    const auto first = std::find_if(target.begin(), target.end(), [](char c) { return c >= '0' && c <= '9'; });
    std::from_chars(first, target.end(), number);
    return number;
}

class Compiler {
  public:
    Compiler(const ptx::Module& source, CompiledModule& target) : source_(source), target_(target) {}

    Status run() {
        GPUPOOL_TRY(check_target());
        GPUPOOL_TRY(place_variables());
        declare_functions();
        GPUPOOL_TRY(check_parameters());
        GPUPOOL_TRY(initialise());
        for (std::size_t i = 0; i < target_.functions.size(); ++i) {
            const ptx::Function& function = *sources_[i];
            if (!function.defined) {
                continue;
            }
            // Shared variables outside of kernels have the same place in all kernels, before a kernel's own.
            const std::uint32_t base =
                function.entry ? (uses_common(function) ? common_shared_bytes_ : 0) : common_shared_bytes_;
            try {
                Lowering(symbols_, function, target_.functions[i], base).run();
            } catch (const LoweringError& error) {
                auto message = fmt::format("line {}: {}", error.line, error.message);
                if (!error.lacking) {
                    return Error{ErrorCode::unsupported, std::move(message)};
                }
                refuse(target_.functions[i], std::move(message));
            }
            if (!function.entry) {
                common_shared_bytes_ = target_.functions[i].shared_bytes;
            } else if (const auto own = target_.functions[i].shared_bytes - base; own > kMostStaticSharedBytes) {
                return Error{ErrorCode::invalid_input,
                             fmt::format("kernel '{}' uses {} bytes of static shared memory, of which there are {}",
                                         target_.functions[i].name, own, kMostStaticSharedBytes)};
            }
        }
        finish();
        return first_refusal();
    }

  private:
    Status check_target() const {
        const std::string_view target = source_.target;
        const std::uint32_t architecture = architecture_of(target);
        const std::string plain = "sm_" + std::to_string(architecture);
        if (target == plain ? architecture <= kOwnArchitecture
                            : target == plain + "a" && architecture == kOwnArchitecture) {
            return {};
        }
        return Error{
            ErrorCode::invalid_input,
            fmt::format("the PTX is for the target '{}'; the software GPU is an sm_{}", target, kOwnArchitecture)};
    }
    // The rest of the module can still run.
    static void refuse(CompiledFunction& function, std::string message) {
        function.refusal = std::move(message);
        function.code.clear();
        function.calls.clear();
    }

    // If none of the kernels can run, the module is refused as a whole.
    Status first_refusal() const {
        const CompiledFunction* refused = nullptr;
        for (const auto& function : target_.functions) {
            if (!function.entry || !function.defined) {
                continue;
            }
            if (function.refusal.empty()) {
                return {};
            }
            if (refused == nullptr) {
                refused = &function;
            }
        }
        if (refused == nullptr) {
            return {};
        }
        return Error{ErrorCode::unsupported, refused->refusal};
    }

    Status place_variables() {
        std::uint64_t bytes = 0;
        for (const auto& variable : source_.variables) {
            if (variable.space == ptx::Space::shared) {
                place_shared(variable);
                continue;
            }
            if (variable.external && !variable.unsized_array && variable.initial.empty() &&
                defined_elsewhere(variable)) {
                continue;
            }
            if (variable.external) {
                return Error{ErrorCode::unsupported, fmt::format("line {}: '{}' is declared but not defined here",
                                                                 variable.line, variable.name)};
            }
            if (symbols_.names.count(variable.name) != 0) {
                continue;
            }
            if (variable.type == ptx::Type::samplerref) {
                return Error{
                    ErrorCode::unsupported,
                    fmt::format("line {}: samplers apart from textures (texmode_independent) are not supported "
                                "by the software GPU",
                                variable.line)};
            }
            if (variable.type == ptx::Type::texref || variable.type == ptx::Type::surfref) {
                symbols_.names[variable.name] = {Symbol::reference, target_.references.size()};
                target_.references.push_back({std::string(variable.name), variable.type == ptx::Type::surfref});
                continue;
            }
            if (variable.space == ptx::Space::constant) {
                constant_bytes_ = round_up(constant_bytes_, variable.align_bytes) + variable.size_bytes;
            }
            if (constant_bytes_ > kMaxConstantBytes) {
                return Error{ErrorCode::invalid_input,
                             fmt::format("line {}: with '{}' there are {} bytes of constant variables; at most {} are "
                                         "accepted",
                                         variable.line, variable.name, constant_bytes_, kMaxConstantBytes)};
            }
            bytes = round_up(bytes, std::max<std::uint64_t>(variable.align_bytes, 256));
            symbols_.names[variable.name] = {Symbol::address, bytes};
            placed_.push_back(&variable);
            bytes += variable.size_bytes;
        }
        if (bytes == 0) {
            return {};
        }
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            return system_error("mmap for a module's variables", errno);
        }
        target_.memory = static_cast<std::uint8_t*>(memory);
        target_.memory_bytes = bytes;
        for (const auto* variable : placed_) {
            Symbol& symbol = symbols_.names[variable->name];
            symbol.value += reinterpret_cast<std::uint64_t>(memory);
            AddressSpace::instance().add(symbol.value, variable->size_bytes);
            target_.variables.push_back(
                {std::string(variable->name), symbol.value, variable->size_bytes, variable->managed});
        }
        return {};
    }

    bool defined_elsewhere(const ptx::Variable& variable) const {
        return std::any_of(source_.variables.begin(), source_.variables.end(),
                           [&](const ptx::Variable& other) { return !other.external && other.name == variable.name; });
    }

    void place_shared(const ptx::Variable& variable) {
        if (variable.unsized_array) {
            symbols_.names[variable.name] = {Symbol::dynamic_shared, 0};
            return;
        }
        const auto at = static_cast<std::uint32_t>(round_up(common_shared_bytes_, variable.align_bytes));
        symbols_.names[variable.name] = {Symbol::shared, at};
        common_shared_bytes_ = at + static_cast<std::uint32_t>(variable.size_bytes);
    }

    // A declaration and its definition become one function.
    void declare_functions() {
        std::unordered_map<std::string_view, std::size_t> index;
        for (const auto& function : source_.functions) {
            const auto [at, fresh] = index.try_emplace(function.name, sources_.size());
            if (fresh) {
                sources_.push_back(&function);
            } else if (function.defined) {
                sources_[at->second] = &function;
            }
        }
        // Device functions first, since kernels that call them need to know their shared variables.
        std::stable_sort(sources_.begin(), sources_.end(),
                         [](const auto* a, const auto* b) { return !a->entry && b->entry; });
        target_.functions.resize(sources_.size());
        for (std::size_t i = 0; i < sources_.size(); ++i) {
            const ptx::Function& from = *sources_[i];
            CompiledFunction& to = target_.functions[i];
            to.name = from.name;
            to.entry = from.entry;
            to.defined = from.defined;
            to.index = static_cast<std::uint32_t>(i);
            to.virtual_architecture = architecture_of(source_.target);
            if (from.max_threads != 0) {
                to.max_threads = std::min<std::uint32_t>(1024, from.max_threads);
            }
            to.max_registers = from.max_registers;
            std::copy(from.required_threads, from.required_threads + 3, to.required_threads);
            std::copy(from.required_cluster, from.required_cluster + 3, to.required_cluster);
            std::uint64_t bytes = 0;
            for (const auto& param : from.params) {
                bytes = place_param(param, bytes, to.params, from.entry);
            }
            to.param_bytes = static_cast<std::uint32_t>(bytes);
            for (const auto& param : from.returns) {
                bytes = place_param(param, bytes, to.returns, from.entry);
            }
            symbols_.names[from.name] = {Symbol::function, i};
        }
        symbols_.functions = target_.functions.data();
        symbols_.function_count = target_.functions.size();
    }

    static std::uint64_t place_param(const ptx::Variable& param, std::uint64_t bytes, std::vector<ParamInfo>& into,
                                     bool entry) {
        const std::uint64_t align = entry ? param.align_bytes : std::max<std::uint64_t>(param.align_bytes, 8);
        const std::uint64_t at = round_up(bytes, align);
        into.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(param.size_bytes)});
        return at + param.size_bytes;
    }

    Status check_parameters() const {
        const bool many = target_.ptx_version >= 81 && architecture_of(source_.target) >= 70;
        const std::uint32_t limit_bytes = many ? kMaxParamBytes : kMaxParamBytesBeforePtx81;
        for (const auto& function : target_.functions) {
            if (!function.entry || function.param_bytes <= limit_bytes) {
                continue;
            }
            return Error{ErrorCode::invalid_input, fmt::format("the kernel '{}' has {} bytes of parameters; at most {} "
                                                               "are accepted",
                                                               function.name, function.param_bytes, limit_bytes)};
        }
        return {};
    }

    Status initialise() {
        for (const auto* variable : placed_) {
            auto* at = reinterpret_cast<std::uint8_t*>(symbols_.names[variable->name].value);
            if (!variable->initial.empty()) {
                std::memcpy(at, variable->initial.data(), variable->initial.size());
            }
            for (const auto& relocation : variable->relocations) {
                const auto found = symbols_.names.find(relocation.symbol);
                if (found == symbols_.names.end()) {
                    return Error{ErrorCode::invalid_input,
                                 fmt::format("line {}: the initial value of '{}' names '{}', which is not declared",
                                             variable->line, variable->name, relocation.symbol)};
                }
                std::uint64_t value = found->second.value;
                if (found->second.kind == Symbol::function) {
                    value = reinterpret_cast<std::uint64_t>(target_.functions.data() + value);
                }
                value += static_cast<std::uint64_t>(relocation.addend);
                if (relocation.byte >= 0) {
                    value = value >> (8 * relocation.byte) & 0xFF;
                }
                std::memcpy(at + relocation.offset_bytes, &value,
                            std::min<std::size_t>(relocation.size_bytes, sizeof value));
            }
        }
        return {};
    }

    bool uses_common(const ptx::Function& function) const {
        if (common_shared_bytes_ == 0) {
            return false;
        }
        for (const auto& instruction : function.body) {
            if (instruction.opcode.substr(0, 4) == "call") {
                return true;
            }
            for (const auto& operand : instruction.operands) {
                if (names_shared(operand)) {
                    return true;
                }
                for (const auto& item : operand.items) {
                    if (names_shared(item)) {
                        return true;
                    }
                }
            }
        }
        return false;
    }

    bool names_shared(const ptx::Operand& operand) const {
        if (operand.kind != ptx::OperandKind::symbol || operand.variable >= 0) {
            return false;
        }
        const auto found = symbols_.names.find(operand.name);
        return found != symbols_.names.end() && found->second.kind == Symbol::shared;
    }

    void finish() {
        state_.assign(target_.functions.size(), 0);
        stack_.assign(target_.functions.size(), 0);
        for (auto& function : target_.functions) {
            visit(function);
            function.constant_bytes = static_cast<std::uint32_t>(constant_bytes_);
            function.stack_bytes = stack_[function.index];
            if (function.may_recurse) {
                function.stack_bytes = std::max(function.stack_bytes, kRecursiveStackBytes);
            }
            // A function with indirect or recursive calls may need any device function's shared variables.
            if (function.entry && function.may_recurse) {
                function.shared_bytes = std::max(function.shared_bytes, common_shared_bytes_);
            }
        }
    }

    // Finds the deepest chain of local memory below a function. A chain of more than 1000 functions is treated as
    // recursion, which bounds this recursion.
    void visit(CompiledFunction& function, std::uint32_t depth = 0) {
        if (state_[function.index] == 2) {
            return;
        }
        state_[function.index] = 1;
        std::uint32_t deepest = 0;
        for (const auto& site : function.calls) {
            if (site.callee < 0 || site.builtin != Builtin::none) {
                continue;
            }
            CompiledFunction& callee = target_.functions[static_cast<std::size_t>(site.callee)];
            if (state_[callee.index] == 1 || depth > 1000) {
                function.may_recurse = true;
                continue;
            }
            visit(callee, depth + 1);
            if (function.refusal.empty()) {
                function.refusal = callee.refusal;
            }
            function.may_recurse |= callee.may_recurse;
            function.uses_reserved_shared |= callee.uses_reserved_shared;
            deepest = std::max(deepest, stack_[callee.index]);
        }
        stack_[function.index] = function.local_bytes + deepest;
        state_[function.index] = 2;
    }

    const ptx::Module& source_;
    CompiledModule& target_;
    ModuleSymbols symbols_;
    std::vector<const ptx::Variable*> placed_;
    std::vector<const ptx::Function*> sources_;
    std::uint32_t common_shared_bytes_ = 0;
    std::uint64_t constant_bytes_ = 0;
    std::vector<std::uint8_t> state_;
    std::vector<std::uint32_t> stack_;
};

}  // namespace

CompiledModule::~CompiledModule() {
    for (const auto& variable : variables) {
        AddressSpace::instance().remove(variable.address, variable.size_bytes);
    }
    if (memory != nullptr) {
        munmap(memory, memory_bytes);
    }
}

const ModuleVariable* CompiledModule::find_variable(std::string_view name) const {
    for (const auto& variable : variables) {
        if (variable.name == name) {
            return &variable;
        }
    }
    return nullptr;
}

std::vector<const CompiledFunction*> CompiledModule::entries() const {
    std::vector<const CompiledFunction*> result;
    for (const auto& function : functions) {
        if (function.entry && function.defined) {
            result.push_back(&function);
        }
    }
    return result;
}

Result<std::unique_ptr<CompiledModule>> compile(std::string_view text, std::uint32_t max_registers) {
    std::vector<ptx::Module> units;
    for (const auto& unit : ptx::split_units(text)) {
        auto parsed = ptx::parse(unit.text);
        if (!parsed) {
            // The parser only returns `unsupported` for a later version.
            const bool later = parsed.error().code == ErrorCode::unsupported;
            return Error{later ? ErrorCode::limit_exceeded : ErrorCode::invalid_input, parsed.error().message};
        }
        ptx::limit_registers(*parsed, unit.max_registers != 0 ? unit.max_registers : max_registers);
        units.push_back(std::move(*parsed));
    }
    std::deque<std::string> names;
    auto parsed = ptx::link(std::move(units), names);
    if (!parsed) {
        return parsed.error();
    }
    auto module = std::make_unique<CompiledModule>();
    module->ptx_version = parsed->version_major * 10 + parsed->version_minor;
    if (auto status = Compiler(*parsed, *module).run(); !status) {
        return status.error();
    }
    return module;
}

}  // namespace gpupool::softgpu
