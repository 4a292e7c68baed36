// Kernels of a PTX text: every .entry and its .param declarations. Bodies are skipped, nothing else is understood.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "common/fatbin/kernels.h"

namespace gpupool::fatbin {
namespace {

Error malformed(std::string message) {
    return Error{ErrorCode::invalid_input, "PTX: " + std::move(message)};
}

bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
           c == '%';
}

// Words (directives with their dot) and single characters; comments and strings are not seen. Empty at the end.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : rest_(text) {}

    std::string_view next() {
        skip_blank();
        if (rest_.empty()) return {};
        std::size_t length = 1;
        if (rest_[0] == '"') {
            const std::size_t end = rest_.find('"', 1);
            length = end == std::string_view::npos ? rest_.size() : end + 1;
        } else if (rest_[0] == '.' || is_word(rest_[0])) {
            while (length < rest_.size() && is_word(rest_[length])) ++length;
        }
        return take(length);
    }

  private:
    std::string_view take(std::size_t length) {
        const std::string_view token = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return token;
    }

    void skip_past(std::string_view end, std::size_t from) {
        const std::size_t at = rest_.find(end, from);
        rest_.remove_prefix(at == std::string_view::npos ? rest_.size() : at + end.size());
    }

    void skip_blank() {
        while (!rest_.empty()) {
            if (rest_.starts_with("//")) {
                skip_past("\n", 2);
            } else if (rest_.starts_with("/*")) {
                skip_past("*/", 2);
            } else if (rest_[0] == ' ' || (rest_[0] >= '\t' && rest_[0] <= '\r')) {
                rest_.remove_prefix(1);
            } else {
                return;
            }
        }
    }

    std::string_view rest_;
};

std::optional<std::uint32_t> type_bytes(std::string_view type) {
    struct Known {
        std::string_view name;
        std::uint32_t bytes;
    };
    static constexpr std::array known = {
        Known{".b8", 1},         Known{".u8", 1},     Known{".s8", 1},    Known{".b16", 2},    Known{".u16", 2},
        Known{".s16", 2},        Known{".f16", 2},    Known{".bf16", 2},  Known{".b32", 4},    Known{".u32", 4},
        Known{".s32", 4},        Known{".f32", 4},    Known{".f16x2", 4}, Known{".b64", 8},    Known{".u64", 8},
        Known{".s64", 8},        Known{".f64", 8},    Known{".b128", 16}, Known{".texref", 8}, Known{".surfref", 8},
        Known{".samplerref", 8}, Known{".bf16x2", 4},
    };
    for (const Known& entry : known) {
        if (entry.name == type) return entry.bytes;
    }
    return std::nullopt;
}

std::optional<std::uint32_t> number(std::string_view token) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    if (error != std::errc() || end != token.data() + token.size()) return std::nullopt;
    return value;
}

bool is_power_of_two(std::uint32_t value) {
    return value != 0 && (value & (value - 1)) == 0;
}

struct Declaration {
    std::uint32_t element_bytes = 0;
    std::uint32_t alignment = 0;  // 0: the element's own
    std::uint64_t count = 1;
};

// One ".param ..." up to the "," or ")" that ends it, which is returned through `end`.
Result<Declaration> declaration(Scanner& scanner, std::string_view& end) {
    Declaration result;
    bool about_pointee = false;  // after .ptr, .align speaks of what is pointed at
    for (;;) {
        const std::string_view token = scanner.next();
        if (token.empty()) return malformed("parameter list is cut off");
        if (token == "," || token == ")") {
            end = token;
            break;
        }
        if (token == ".ptr") {
            about_pointee = true;
        } else if (token == ".align") {
            const auto alignment = number(scanner.next());
            if (!alignment || !is_power_of_two(*alignment) || *alignment > 128) return malformed("bad .align");
            if (!about_pointee) result.alignment = *alignment;
        } else if (token == "[") {
            const auto count = number(scanner.next());
            if (!count) return malformed("parameter array without a size");
            result.count = *count;
        } else if (auto bytes = type_bytes(token)) {
            result.element_bytes = *bytes;
        }
    }
    if (result.element_bytes == 0) return malformed("parameter of a type that is not known");
    return result;
}

Status read_parameters(Scanner& scanner, KernelLayout& kernel) {
    std::uint64_t offset = 0;
    for (std::string_view end = ","; end == ",";) {
        const std::string_view first = scanner.next();
        if (first == ")" && kernel.parameters.empty()) break;
        if (first != ".param") return malformed(fmt::format("'{}' where a .param was expected", first.substr(0, 40)));
        auto parameter = declaration(scanner, end);
        if (!parameter) return parameter.error();
        const std::uint64_t alignment = std::max(parameter->alignment, parameter->element_bytes);
        const std::uint64_t size = parameter->element_bytes * parameter->count;
        offset = (offset + alignment - 1) / alignment * alignment;
        if (offset + size > max_parameter_block_bytes || kernel.parameters.size() == max_kernel_parameters) {
            return Error{ErrorCode::limit_exceeded,
                         fmt::format("PTX: parameters exceed {} bytes", max_parameter_block_bytes)};
        }
        kernel.parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
        offset += size;
    }
    kernel.parameter_block_bytes = static_cast<std::uint32_t>(offset);
    return {};
}

}  // namespace

Result<std::vector<KernelLayout>> ptx_kernels(std::string_view text) {
    Scanner scanner(text);
    std::vector<KernelLayout> kernels;
    for (std::string_view token = scanner.next(); !token.empty(); token = scanner.next()) {
        if (token != ".entry") continue;
        KernelLayout kernel;
        kernel.name = scanner.next();
        if (kernel.name.empty() || !is_word(kernel.name[0])) return malformed(".entry without a name");
        if (kernels.size() == max_kernels) {
            return Error{ErrorCode::limit_exceeded, fmt::format("PTX: more than {} kernels", max_kernels)};
        }
        // Without parentheses there are no parameters; what came instead is part of the body.
        if (scanner.next() == "(") {
            if (auto status = read_parameters(scanner, kernel); !status) return status.error().within(kernel.name);
        }
        kernels.push_back(std::move(kernel));
    }
    return kernels;
}

}  // namespace gpupool::fatbin
