#include "server/softgpu/ptx/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

namespace gpupool::softgpu::ptx {
namespace {

constexpr std::string_view kUnitMark = "// gpupool linked unit, registers: ";
constexpr std::uint32_t kLeastRegisters = 24;  // a lower limit counts as this
constexpr std::uint32_t kRegistersOfProcessor = 65536;

using Renames = std::unordered_map<std::string_view, std::string_view>;

void rename(const Renames& renames, std::string_view& name) {
    if (const auto found = renames.find(name); found != renames.end()) {
        name = found->second;
    }
}

void rename(const Renames& renames, Operand& operand) {
    const bool of_function = operand.variable >= 0 || operand.kind == OperandKind::special;
    if (!of_function) {
        rename(renames, operand.name);
    }
    for (auto& item : operand.items) {
        rename(renames, item);
    }
}

void rename(const Renames& renames, Module& unit) {
    for (auto& variable : unit.variables) {
        rename(renames, variable.name);
        for (auto& relocation : variable.relocations) {
            rename(renames, relocation.symbol);
        }
    }
    for (auto& function : unit.functions) {
        rename(renames, function.name);
        for (auto& instruction : function.body) {
            for (auto& operand : instruction.operands) {
                rename(renames, operand);
            }
        }
    }
}

// Names that are local to a unit, with a unique replacement each. Kernels keep their names if possible, since programs
// look up static ones too.
Renames own_names(const Module& unit, std::size_t index,
                  const std::unordered_map<std::string_view, std::size_t>& functions, std::deque<std::string>& names) {
    std::unordered_set<std::string_view> shared;
    for (const auto& variable : unit.variables) {
        if (variable.visible || variable.external) {
            shared.insert(variable.name);
        }
    }
    for (const auto& function : unit.functions) {
        const bool kernel = function.entry && functions.count(function.name) == 0;
        if (function.visible || function.external || kernel) {
            shared.insert(function.name);
        }
    }
    Renames result;
    const auto add = [&](std::string_view name) {
        if (shared.count(name) == 0 && result.count(name) == 0) {
            result[name] = names.emplace_back(fmt::format("{}$unit{}", name, index));
        }
    };
    for (const auto& variable : unit.variables) {
        add(variable.name);
    }
    for (const auto& function : unit.functions) {
        add(function.name);
    }
    return result;
}

bool is_definition(const Variable& variable) {
    return !variable.external;
}
bool is_definition(const Function& function) {
    return function.defined;
}

// Appends the items of a unit. If a name is defined twice, one definition must be weak and is dropped.
template <class T>
Status merge(std::vector<T>& all, std::vector<T>& more, std::unordered_map<std::string_view, std::size_t>& defined) {
    const std::size_t before = all.size();
    for (auto& item : more) {
        const auto found = defined.find(item.name);
        // Repeated definitions within one unit were accepted by its compiler.
        const bool again = is_definition(item) && found != defined.end() && found->second < before;
        if (!again) {
            if (is_definition(item)) {
                defined[item.name] = all.size();
            }
            all.push_back(std::move(item));
            continue;
        }
        T& first = all[found->second];
        if (!item.weak && !first.weak) {
            return Error{ErrorCode::invalid_input, fmt::format("'{}' is defined in two of the units", item.name)};
        }
        if (first.weak && !item.weak) {
            first = std::move(item);
        }
    }
    return {};
}

}  // namespace

std::string join_units(const std::vector<Unit<std::string>>& units) {
    std::string result;
    for (const auto& unit : units) {
        fmt::format_to(std::back_inserter(result), "{}{}\n{}\n", kUnitMark, unit.max_registers, unit.text);
    }
    return result;
}

std::vector<Unit<std::string_view>> split_units(std::string_view text) {
    if (text.substr(0, kUnitMark.size()) != kUnitMark) {
        return {{text}};
    }
    std::vector<Unit<std::string_view>> result;
    while (!text.empty()) {
        text.remove_prefix(kUnitMark.size());
        Unit<std::string_view> unit;
        std::from_chars(text.data(), text.data() + text.size(), unit.max_registers);
        const auto end = text.find(kUnitMark);
        unit.text = text.substr(0, end);
        unit.text.remove_prefix(std::min(unit.text.size(), unit.text.find('\n')));
        result.push_back(unit);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end);
    }
    return result;
}

void limit_registers(Module& unit, std::uint32_t otherwise) {
    for (Function& function : unit.functions) {
        std::uint32_t& limit = function.max_registers;
        if (limit == 0 && function.max_threads != 0) {
            const std::uint64_t threads = std::uint64_t{function.max_threads} * std::max(1U, function.min_blocks);
            limit = static_cast<std::uint32_t>(kRegistersOfProcessor / threads) / 8 * 8;
        } else if (limit == 0) {
            limit = otherwise == 0 ? kMostRegisters : otherwise;
        }
        limit = std::clamp(limit, kLeastRegisters, kMostRegisters);
    }
}

Result<Module> link(std::vector<Module> units, std::deque<std::string>& names) {
    Module result;
    std::unordered_map<std::string_view, std::size_t> functions, variables;
    for (std::size_t i = 0; i < units.size(); ++i) {
        Module& unit = units[i];
        if (i == 0) {
            result.target = unit.target;
        }
        const auto version = [](const Module& m) { return std::pair(m.version_major, m.version_minor); };
        if (version(unit) > version(result)) {
            result.version_major = unit.version_major;
            result.version_minor = unit.version_minor;
        }
        if (units.size() > 1) {
            rename(own_names(unit, i, functions, names), unit);
        }
        GPUPOOL_TRY(merge(result.variables, unit.variables, variables));
        GPUPOOL_TRY(merge(result.functions, unit.functions, functions));
    }
    return result;
}

}  // namespace gpupool::softgpu::ptx
