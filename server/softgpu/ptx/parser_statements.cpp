#include <fmt/format.h>

#include <charconv>

#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr std::size_t kMaxRegisters = 1U << 20;
constexpr std::size_t kMaxInstructions = 1U << 24;
constexpr std::size_t kMaxScopeDepth = 64;
constexpr int kMaxOperandDepth = 4;

}  // namespace

void Parser::body() {
    expect('{');
    names_.assign(1, {});
    function_->scopes.assign(1, {});
    scope_path_.assign(1, 0);
    const auto declare_params = [&](std::vector<Variable>& params) {
        for (auto& param : params) {
            declare(param.name, {Name::variable, static_cast<std::uint32_t>(function_->variables.size()), 1});
            function_->variables.push_back(param);
        }
    };
    // Formal parameters, then return values, are the function's first variables.
    declare_params(function_->params);
    declare_params(function_->returns);
    while (!names_.empty()) {
        statement();
    }
}

void Parser::statement() {
    if (accept('{')) {
        if (names_.size() >= kMaxScopeDepth) {
            fail("braces nested too deeply");
        }
        names_.emplace_back();
        Scope scope;
        scope.parent = static_cast<std::int32_t>(scope_path_.back());
        scope_path_.push_back(static_cast<std::uint32_t>(function_->scopes.size()));
        function_->scopes.push_back(std::move(scope));
        return;
    }
    if (accept('}')) {
        names_.pop_back();
        scope_path_.pop_back();
        return;
    }
    if (accept(';')) {
        return;
    }
    if (token_.kind == TokenKind::directive && directive_statement()) {
        return;
    }
    instruction();
}

bool Parser::directive_statement() {
    if (accept(".reg")) {
        return register_declaration(), true;
    }
    if (accept(".local")) {
        return local_variable(Space::local), true;
    }
    if (accept(".shared")) {
        return local_variable(Space::shared), true;
    }
    if (accept(".param")) {
        return local_variable(Space::param), true;
    }
    if (token_.is(".pragma")) {
        while (!token_.is(';') && token_.kind != TokenKind::end) {
            advance();
        }
        expect(';');
        return true;
    }
    if (token_.is(".section")) {
        advance();
        advance();
        skip_braces();
        return true;
    }
    fail(fmt::format("'{}' is not known inside a function", token_.text));
}

void Parser::register_declaration() {
    if (token_.is(".v2") || token_.is(".v4")) {
        fail("vector registers are not supported by the software GPU");
    }
    if (token_.kind != TokenKind::directive) {
        fail("a register declaration without a type");
    }
    const Type type = type_from_name(token_.text.substr(1));
    if (type == Type::none) {
        fail(fmt::format("'{}' is not a register type", token_.text));
    }
    advance();
    do {
        const auto name = expect_word("a register name");
        std::uint64_t count = 1;
        const bool range = accept('<');
        if (range) {
            count = expect_integer("a register count");
            expect('>');
        }
        const auto first = function_->registers.size();
        if (count > kMaxRegisters || first + count > kMaxRegisters) {
            fail("too many registers");
        }
        function_->registers.resize(first + count, type);
        declare(name, {range ? Name::reg_range : Name::reg, static_cast<std::uint32_t>(first),
                       static_cast<std::uint32_t>(count)});
    } while (accept(','));
    expect(';');
}

void Parser::local_variable(Space space) {
    for (auto& declared : variables(space, {})) {
        if (!declared.initial.empty()) {
            fail("a variable inside a function cannot have an initial value");
        }
        declare(declared.name, {Name::variable, static_cast<std::uint32_t>(function_->variables.size()), 1});
        function_->variables.push_back(std::move(declared));
        if (function_->variables.size() > kMaxRegisters) {
            fail("too many variables");
        }
    }
    expect(';');
}

void Parser::declare(std::string_view name, Name what) {
    names_.back()[name] = what;
}

std::optional<Parser::Name> Parser::find(std::string_view name) const {
    for (auto scope = names_.rbegin(); scope != names_.rend(); ++scope) {
        if (const auto found = scope->find(name); found != scope->end()) {
            if (found->second.kind != Name::reg_range) {
                return found->second;
            }
        }
    }
    // `%r12` of a declaration `%r<N>`.
    std::size_t stem = name.size();
    while (stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9') {
        --stem;
    }
    if (stem == name.size() || name.size() - stem > 9) {
        return std::nullopt;
    }
    std::uint32_t number = 0;
    std::from_chars(name.data() + stem, name.data() + name.size(), number);
    for (auto scope = names_.rbegin(); scope != names_.rend(); ++scope) {
        const auto found = scope->find(name.substr(0, stem));
        if (found != scope->end() && found->second.kind == Name::reg_range && number < found->second.count) {
            return Name{Name::reg, found->second.first + number, 1};
        }
    }
    return std::nullopt;
}

void Parser::label(std::string_view name) {
    auto& labels = function_->scopes[scope_path_.back()].labels;
    const Label here{static_cast<std::uint32_t>(function_->body.size()), {}};
    if (!labels.emplace(name, here).second) {
        fail(fmt::format("label '{}' is defined twice", name));
    }
}

std::int32_t Parser::predicate(std::string_view name) {
    const auto found = find(name);
    if (!found || found->kind != Name::reg || function_->registers[found->first] != Type::pred) {
        fail(fmt::format("'{}' is not a predicate register", name));
    }
    return static_cast<std::int32_t>(found->first);
}

void Parser::instruction() {
    Instruction result;
    result.scope = scope_path_.back();
    result.line = token_.line;
    if (accept('@')) {
        result.guard_negated = accept('!');
        result.guard = predicate(expect_word("a predicate"));
    }
    result.opcode = expect_word("an instruction");
    if (result.guard < 0 && accept(':')) {
        const auto name = result.opcode;
        if (accept(".branchtargets")) {
            Label targets{static_cast<std::uint32_t>(function_->body.size()), {}};
            do {
                targets.targets.push_back(expect_word("a label"));
            } while (accept(','));
            expect(';');
            function_->scopes[scope_path_.back()].labels[name] = std::move(targets);
            return;
        }
        if (token_.is(".callprototype") || token_.is(".calltargets")) {
            // The arguments of an indirect call are checked against the function that it calls, so the prototype is not
            // needed.
            while (!token_.is(';') && token_.kind != TokenKind::end) {
                advance();
            }
            expect(';');
            return;
        }
        label(name);
        return;
    }
    if (!token_.is(';')) {
        instruction_operands(result);
    }
    expect(';');
    if (function_->body.size() >= kMaxInstructions) {
        fail("a function with too many instructions");
    }
    function_->body.push_back(std::move(result));
}

void Parser::instruction_operands(Instruction& into) {
    in_call_ = into.opcode.substr(0, into.opcode.find('.')) == "call";
    do {
        into.operands.push_back(operand());
        if (into.operands.size() > 16) {
            fail("too many operands");
        }
    } while (accept(','));
}

Operand Parser::braces(char close, OperandKind kind, int depth) {
    Operand result;
    result.kind = kind;
    if (accept(close)) {
        return result;
    }
    do {
        result.items.push_back(operand(depth + 1));
        if (result.items.size() > 8192) {
            fail("too many operands");
        }
    } while (accept(','));
    expect(close);
    return result;
}

Operand Parser::address(int depth) {
    Operand result;
    result.kind = OperandKind::address;
    result.items.push_back(operand(depth + 1));
    auto& base = result.items.front();
    if (base.kind == OperandKind::integer) {
        result.value = base.value;
    } else if (base.kind == OperandKind::symbol) {
        result.value = base.value;
        base.value = 0;
    }
    while (token_.is('+') || token_.is('-')) {
        result.value += addend();
    }
    while (accept(',')) {
        result.items.push_back(operand(depth + 1));  // tensor and texture coordinates
    }
    expect(']');
    return result;
}

void Parser::resolve(std::string_view name, Operand& into) {
    auto found = find(name);
    if (!found && name.find('.') != std::string_view::npos) {
        const auto dot = name.find('.');
        if (const auto whole = find(name.substr(0, dot)); whole && whole->kind == Name::reg) {
            into.selector = name.substr(dot + 1);
            found = whole;
        }
    }
    if (found && found->kind == Name::reg) {
        into.kind = OperandKind::reg;
        into.index = static_cast<std::int32_t>(found->first);
    } else if (found) {
        into.kind = OperandKind::symbol;
        into.variable = static_cast<std::int32_t>(found->first);
    } else if (name == "_") {
        into.kind = OperandKind::sink;
    } else if (name[0] == '%') {
        into.kind = OperandKind::special;
    } else {
        into.kind = OperandKind::symbol;
    }
    into.name = name;
}

bool Parser::word_ahead() const {
    Lexer ahead = lexer_;
    return ahead.next().kind == TokenKind::word;
}

Operand Parser::operand(int depth) {
    if (depth > kMaxOperandDepth) {
        fail("an operand nested too deeply");
    }
    Operand result;
    if (accept('{')) {
        result = braces('}', OperandKind::vector, depth);
        if (accept('|')) {
            result.second = predicate(expect_word("a predicate"));
        }
        return result;
    }
    if (in_call_ && accept('(')) {
        return braces(')', OperandKind::list, depth);
    }
    if (accept('[')) {
        return address(depth);
    }
    if (token_.kind == TokenKind::word && !token_.is("WARP_SZ")) {
        resolve(token_.text, result);
        advance();
        if (accept('|')) {
            const auto name = expect_word("a predicate");
            result.second = name == "_" ? -2 : predicate(name);
        }
        if (result.kind == OperandKind::symbol && (token_.is('+') || token_.is('-'))) {
            result.value = addend();
        }
        return result;
    }
    if (token_.is('!') && word_ahead()) {
        advance();
        result.kind = OperandKind::reg;
        result.negated = true;
        result.name = token_.text;
        result.index = predicate(expect_word("a predicate"));
        return result;
    }
    return constant();
}

}  // namespace gpupool::softgpu::ptx
