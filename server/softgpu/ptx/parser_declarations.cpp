#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "server/softgpu/ptx/parser.h"
#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr std::uint64_t kMaxVariableBytes = std::uint64_t{1} << 32;
constexpr std::size_t kMaxFunctions = 1U << 20;
constexpr int kMaxInitialiserDepth = 64;

std::optional<Space> space_from_directive(std::string_view text) {
    if (text == ".global") {
        return Space::global;
    }
    if (text == ".const") {
        return Space::constant;
    }
    if (text == ".shared") {
        return Space::shared;
    }
    if (text == ".local") {
        return Space::local;
    }
    if (text == ".param") {
        return Space::param;
    }
    return std::nullopt;
}

}  // namespace

void Parser::module_statement() {
    if (accept(".version")) {
        // "9.0" is one real number to the lexer, so use its digits.
        const std::string text(token_.text);
        const auto dot = text.find('.');
        if (dot == std::string::npos) {
            fail("a PTX version is MAJOR.MINOR");
        }
        module_.version_major = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
        module_.version_minor = static_cast<std::uint32_t>(std::strtoul(text.c_str() + dot + 1, nullptr, 10));
        if (std::pair(module_.version_major, module_.version_minor) > kLatestVersion) {
            throw LaterVersion{fmt::format("is of version {}; {}.{} is the latest that is supported", token_.text,
                                           kLatestVersion.first, kLatestVersion.second)};
        }
        advance();
        return;
    }
    if (accept(".target")) {
        module_.target = expect_word("a target");
        while (accept(',')) {
            expect_word("a target option");
        }
        return;
    }
    if (accept(".address_size")) {
        if (expect_integer("an address size") != 64) {
            fail("only .address_size 64 is supported");
        }
        return;
    }
    if (token_.is(".section")) {
        advance();
        if (token_.kind == TokenKind::word || token_.kind == TokenKind::directive) {
            advance();
        }
        skip_braces();
        return;
    }
    if (accept(".alias")) {
        fail(".alias is not supported by the software GPU");
    }
    if (accept(".pragma")) {
        while (!token_.is(';') && token_.kind != TokenKind::end) {
            advance();
        }
        expect(';');
        return;
    }
    if (accept(';')) {
        return;
    }
    Linkage linkage;
    for (;;) {
        if (accept(".visible")) {
            linkage.visible = true;
        } else if (accept(".weak") || accept(".common")) {
            linkage.visible = linkage.weak = true;
        } else if (accept(".extern")) {
            linkage.external = true;
        } else {
            break;
        }
    }
    if (accept(".entry")) {
        return function(true, linkage);
    }
    if (accept(".func")) {
        return function(false, linkage);
    }
    if (token_.kind == TokenKind::directive) {
        if (const auto space = space_from_directive(token_.text); space && *space != Space::param) {
            advance();
            while (accept(".attribute")) {
                expect('(');
                while (!token_.is(')')) {
                    linkage.managed |= token_.is(".managed");
                    if (token_.kind == TokenKind::end) {
                        fail("an .attribute list does not end");
                    }
                    advance();
                }
                expect(')');
            }
            for (auto& declared : variables(*space, linkage)) {
                module_.variables.push_back(std::move(declared));
            }
            expect(';');
            return;
        }
    }
    fail(fmt::format("'{}' is not known here", token_.text));
}

// Parses the type and other attributes before a name, and the number of values per element.
std::pair<Variable, std::uint32_t> Parser::variable_type(Space space, Linkage linkage) {
    Variable result;
    result.space = space;
    result.external = linkage.external;
    result.visible = linkage.visible;
    result.weak = linkage.weak;
    result.managed = linkage.managed;
    std::uint32_t vector = 1;
    for (; token_.kind == TokenKind::directive; advance()) {
        if (token_.is(".align")) {
            advance();
            if (token_.kind != TokenKind::integer || !std::has_single_bit(token_.value) || token_.value > 4096) {
                fail(".align needs a power of two");
            }
            result.align_bytes = static_cast<std::uint32_t>(token_.value);
        } else if (token_.is(".v2") || token_.is(".v4")) {
            vector = token_.is(".v2") ? 2 : 4;
        } else if (token_.is(".ptr") || space_from_directive(token_.text)) {
            // `.param .u64 .ptr .global .align 4 name`: the pointee is irrelevant, but its alignment must not be taken
            // for the parameter's.
            if (token_.is(".ptr")) {
                advance();
                if (token_.kind == TokenKind::directive && space_from_directive(token_.text)) {
                    advance();
                }
                if (accept(".align")) {
                    expect_integer("an alignment");
                }
                break;
            }
        } else if (const auto type = type_from_name(token_.text.substr(1)); type != Type::none) {
            result.type = type;
        } else {
            fail(fmt::format("'{}' is not known in a declaration", token_.text));
        }
    }
    if (result.type == Type::none) {
        fail("a declaration without a type");
    }
    return {std::move(result), vector};
}

Variable Parser::variable(const std::pair<Variable, std::uint32_t>& type) {
    auto [result, vector] = type;
    result.line = token_.line;
    result.name = expect_word("a name");
    const std::uint32_t element = width_bytes(result.type) * vector;
    if (result.align_bytes < element) {
        result.align_bytes = element;
    }
    const std::uint64_t count = array_extents(result);
    result.size_bytes = element * count;
    if (result.size_bytes > kMaxVariableBytes) {
        fail("a variable larger than 4 GiB");
    }
    if (accept('=')) {
        initialiser(result);
    }
    return result;
}

// Parses a list of variables of one type.
std::vector<Variable> Parser::variables(Space space, Linkage linkage) {
    const auto type = variable_type(space, linkage);
    std::vector<Variable> result;
    do {
        result.push_back(variable(type));
    } while (accept(','));
    return result;
}

std::uint64_t Parser::array_extents(Variable& into) {
    std::uint64_t count = 1;
    while (accept('[')) {
        if (accept(']')) {
            into.unsized_array = true;
            count = 0;
            continue;
        }
        const auto extent = expect_integer("an array size");
        if (extent > kMaxVariableBytes || count * extent > kMaxVariableBytes) {
            fail("an array larger than 4 GiB");
        }
        count *= extent;
        expect(']');
    }
    return count;
}

void Parser::initialiser(Variable& into) {
    const std::uint32_t element_bytes = width_bytes(into.type);
    const bool unsized = into.unsized_array;
    if (!unsized) {
        into.initial.assign(into.size_bytes, 0);
    }
    std::uint64_t offset_bytes = 0;
    initialiser_value(into, offset_bytes, element_bytes);
    if (unsized) {
        into.size_bytes = offset_bytes;
        into.unsized_array = false;
    }
}

void Parser::initialiser_value(Variable& into, std::uint64_t& offset_bytes, std::uint32_t element_bytes, int depth) {
    if (depth > kMaxInitialiserDepth) {
        fail("an initial value nested too deeply");
    }
    if (accept('{')) {
        if (accept('}')) {
            return;
        }
        do {
            initialiser_value(into, offset_bytes, element_bytes, depth + 1);
        } while (accept(','));
        expect('}');
        return;
    }
    if (offset_bytes + element_bytes > into.initial.size()) {
        if (!into.unsized_array || offset_bytes > kMaxVariableBytes) {
            fail("too many initial values");
        }
        into.initial.resize(offset_bytes + element_bytes);
    }
    std::uint8_t* at = into.initial.data() + offset_bytes;
    if (token_.kind == TokenKind::word && !token_.is("WARP_SZ")) {
        if (element_bytes != 8) {
            fail("an address in an initialiser must be 64 bits wide");
        }
        initialiser_symbol(into, offset_bytes, element_bytes);
    } else if (mask_ahead()) {
        initialiser_byte(into, offset_bytes, element_bytes);
    } else {
        const Operand value = constant();
        std::uint64_t bits = static_cast<std::uint64_t>(value.value);
        if (into.type == Type::f32 && value.kind == OperandKind::real64) {
            bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
        } else if (into.type == Type::f32 && value.kind == OperandKind::integer) {
            bits = std::bit_cast<std::uint32_t>(static_cast<float>(value.value));
        } else if (into.type == Type::f64 && value.kind == OperandKind::integer) {
            bits = std::bit_cast<std::uint64_t>(static_cast<double>(value.value));
        }
        std::memcpy(at, &bits, std::min<std::size_t>(element_bytes, sizeof bits));
    }
    offset_bytes += element_bytes;
}

// The address of a symbol. `generic(symbol)` is the same, because spaces with initial values use flat addresses.
void Parser::initialiser_symbol(Variable& into, std::uint64_t offset_bytes, std::uint32_t element_bytes) {
    Relocation relocation;
    relocation.offset_bytes = offset_bytes;
    relocation.size_bytes = element_bytes;
    const bool generic = accept("generic");
    if (generic) {
        expect('(');
    }
    relocation.symbol = expect_word("a symbol");
    if (token_.is('+') || token_.is('-')) {
        relocation.addend = addend();
    }
    if (generic) {
        expect(')');
    }
    if (generic && token_.is('+')) {
        relocation.addend += addend();
    }
    into.relocations.push_back(relocation);
}

bool Parser::mask_ahead() const {
    Lexer ahead = lexer_;
    return token_.kind == TokenKind::integer && ahead.next().is('(');
}

// `0xFF00(symbol)`: one byte of an address, as in packed structures.
void Parser::initialiser_byte(Variable& into, std::uint64_t offset_bytes, std::uint32_t element_bytes) {
    const std::uint64_t mask = expect_integer("a mask");
    const int shift = std::countr_zero(mask);
    if (mask == 0 || shift % 8 != 0 || mask >> shift != 0xFF) {
        fail("a mask that is not one byte of an address");
    }
    expect('(');
    initialiser_symbol(into, offset_bytes, element_bytes);
    expect(')');
    into.relocations.back().byte = shift / 8;
}

std::vector<Variable> Parser::parameters() {
    std::vector<Variable> result;
    if (!accept('(')) {
        return result;
    }
    if (accept(')')) {
        return result;
    }
    do {
        if (token_.is(".reg")) {
            fail("functions with .reg parameters are not supported by the software GPU");
        }
        if (!accept(".param")) {
            fail("expected .param");
        }
        result.push_back(variable(variable_type(Space::param, {})));
        if (result.back().unsized_array) {
            fail("variadic functions are not supported by the software GPU");
        }
        if (result.size() > 8192) {
            fail("too many parameters");
        }
    } while (accept(','));
    expect(')');
    return result;
}

void Parser::function(bool entry, Linkage linkage) {
    Function result;
    result.entry = entry;
    result.external = linkage.external;
    result.visible = linkage.visible;
    result.weak = linkage.weak;
    result.line = token_.line;
    while (accept(".attribute") || accept(".noreturn")) {
        if (accept('(')) {
            while (!token_.is(')') && token_.kind != TokenKind::end) {
                advance();
            }
            expect(')');
        }
    }
    if (!entry && token_.is('(')) {
        result.returns = parameters();
    }
    result.name = expect_word("a function name");
    result.params = parameters();
    performance_directives(result);
    if (module_.functions.size() >= kMaxFunctions) {
        fail("too many functions");
    }
    module_.functions.push_back(std::move(result));
    if (accept(';')) {
        return;
    }
    function_ = &module_.functions.back();
    function_->defined = true;
    body();
    function_ = nullptr;
}

void Parser::performance_directives(Function& into) {
    while (token_.kind == TokenKind::directive) {
        if (token_.is(".maxntid") || token_.is(".reqntid")) {
            const bool required = token_.is(".reqntid");
            advance();
            std::uint32_t extent[3] = {1, 1, 1};
            for (int dimension = 0; dimension < 3; ++dimension) {
                extent[dimension] = static_cast<std::uint32_t>(expect_integer("a block size"));
                if (!accept(',')) {
                    break;
                }
            }
            into.max_threads = extent[0] * extent[1] * extent[2];
            if (required) {
                std::copy(extent, extent + 3, into.required_threads);
            }
        } else if (accept(".minnctapersm")) {
            into.min_blocks = static_cast<std::uint32_t>(expect_integer("a number of blocks"));
        } else if (accept(".maxnreg")) {
            into.max_registers = static_cast<std::uint32_t>(expect_integer("a number of registers"));
            if (into.max_registers == 0) {
                fail("a kernel without registers");
            }
        } else if (accept(".reqnctapercluster")) {
            std::fill_n(into.required_cluster, 3, 1U);
            for (auto& extent : into.required_cluster) {
                if (token_.kind != TokenKind::integer) {
                    break;
                }
                extent = static_cast<std::uint32_t>(expect_integer("a cluster size"));
                if (extent == 0 || extent > 64) {
                    fail("a cluster of an impossible size");
                }
                if (!accept(',')) {
                    break;
                }
            }
        } else if (token_.is(".pragma")) {
            while (!token_.is(';') && token_.kind != TokenKind::end) {
                advance();
            }
            expect(';');
        } else {
            // .noreturn, .maxclusterrank and others only matter for machine code.
            advance();
            while (token_.kind == TokenKind::integer || token_.is(',')) {
                advance();
            }
        }
    }
}

void Parser::skip_braces() {
    expect('{');
    for (int depth = 1; depth > 0; advance()) {
        if (token_.kind == TokenKind::end) {
            fail("a '{' without its '}'");
        }
        if (token_.is('{')) {
            ++depth;
        }
        if (token_.is('}')) {
            --depth;
        }
    }
}

}  // namespace gpupool::softgpu::ptx
