// The recursive-descent parser behind parse(): declarations in parser_declarations.cpp, statements in
// parser_statements.cpp, constants in parser_expressions.cpp.
//
// Ownership: fills a Module that the caller takes. Threads: one. Errors: throws SyntaxError, which parse() catches.
#pragma once

#include <optional>
#include <string>

#include "server/softgpu/ptx/ast.h"
#include "server/softgpu/ptx/lexer.h"

namespace gpupool::softgpu::ptx {

class Parser {
  public:
    explicit Parser(std::string_view text) : lexer_(text) { advance(); }

    Module run();

  private:
    struct Linkage {
        bool external = false;
        bool visible = false;
        bool weak = false;
        bool managed = false;
    };

    // The meaning of a name inside a function.
    struct Name {
        enum Kind : std::uint8_t { reg, reg_range, variable } kind;
        std::uint32_t first;
        std::uint32_t count;
    };

    // --- parser_declarations.cpp
    void module_statement();
    std::pair<Variable, std::uint32_t> variable_type(Space space, Linkage linkage);
    Variable variable(const std::pair<Variable, std::uint32_t>& type);
    std::vector<Variable> variables(Space space, Linkage linkage);
    std::vector<Variable> parameters();
    void initialiser(Variable& into);
    void initialiser_value(Variable& into, std::uint64_t& offset_bytes, std::uint32_t element_bytes, int depth = 0);
    void initialiser_symbol(Variable& into, std::uint64_t offset_bytes, std::uint32_t element_bytes);
    void initialiser_byte(Variable& into, std::uint64_t offset_bytes, std::uint32_t element_bytes);
    bool mask_ahead() const;
    std::uint64_t array_extents(Variable& into);
    void function(bool entry, Linkage linkage);
    void performance_directives(Function& into);
    void skip_braces();

    // --- parser_statements.cpp
    void body();
    void statement();
    bool directive_statement();
    void register_declaration();
    void local_variable(Space space);
    void instruction();
    void instruction_operands(Instruction& into);
    Operand operand(int depth = 0);
    Operand address(int depth);
    Operand braces(char close, OperandKind kind, int depth);
    bool word_ahead() const;
    void resolve(std::string_view name, Operand& into);
    std::optional<Name> find(std::string_view name) const;
    void declare(std::string_view name, Name what);
    std::int32_t predicate(std::string_view name);
    void label(std::string_view name);

    // --- parser_expressions.cpp
    struct Constant {
        OperandKind kind = OperandKind::none;  // integer, real32 or real64
        std::uint64_t bits = 0;
        bool is_unsigned = false;

        double real() const;
    };
    Operand constant();
    std::int64_t addend();
    Constant primary(int depth);
    Constant binary(int least, int depth);
    Constant ternary(int depth);
    Constant combined(std::string_view name, const Constant& a, const Constant& b) const;
    std::string_view operator_ahead() const;

    // --- parser.cpp
    void advance();
    bool accept(char c);
    bool accept(std::string_view word);
    void expect(char c);
    std::string_view expect_word(const char* what);
    std::uint64_t expect_integer(const char* what);
    [[noreturn]] void fail(std::string message) const;

    Lexer lexer_;
    Token token_;
    Module module_;
    Function* function_ = nullptr;
    bool in_call_ = false;  // parentheses are parameter lists, not constant expressions
    std::vector<std::unordered_map<std::string_view, Name>> names_;  // innermost scope last
    std::vector<std::uint32_t> scope_path_;
};

}  // namespace gpupool::softgpu::ptx
