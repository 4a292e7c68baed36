// Constant expressions in operands and initial values: C's operators over 64-bit integers and doubles.
#include <fmt/format.h>

#include <bit>
#include <limits>

#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {
namespace {

constexpr int kMaxExpressionDepth = 64;

// Precedence as in C, the loosest first; 0 if it is not a binary operator.
int precedence(std::string_view name) {
    static constexpr struct {
        std::string_view name;
        int precedence;
    } kOperators[] = {{"||", 1}, {"&&", 2}, {"|", 3},  {"^", 4},  {"&", 5}, {"==", 6}, {"!=", 6}, {"<", 7},  {"<=", 7},
                      {">", 7},  {">=", 7}, {"<<", 8}, {">>", 8}, {"+", 9}, {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10}};
    for (const auto& entry : kOperators) {
        if (entry.name == name) {
            return entry.precedence;
        }
    }
    return 0;
}

template <class T>
bool compares(std::string_view name, T a, T b, bool& answer) {
    if (name == "==") {
        answer = a == b;
    } else if (name == "!=") {
        answer = a != b;
    } else if (name == "<") {
        answer = a < b;
    } else if (name == "<=") {
        answer = a <= b;
    } else if (name == ">") {
        answer = a > b;
    } else if (name == ">=") {
        answer = a >= b;
    } else if (name == "&&") {
        answer = a != 0 && b != 0;
    } else if (name == "||") {
        answer = a != 0 || b != 0;
    } else {
        return false;
    }
    return true;
}

}  // namespace

double Parser::Constant::real() const {
    if (kind == OperandKind::real64) {
        return std::bit_cast<double>(bits);
    }
    if (kind == OperandKind::real32) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    }
    return is_unsigned ? static_cast<double>(bits) : static_cast<double>(static_cast<std::int64_t>(bits));
}

// The binary operator of one or two characters at the current token, or empty.
std::string_view Parser::operator_ahead() const {
    if (token_.is("%")) {
        return token_.text;  // the lexer reads it as a word, since names begin with it
    }
    if (token_.kind != TokenKind::punctuation) {
        return {};
    }
    Lexer ahead = lexer_;
    const Token next = ahead.next();
    if (next.kind == TokenKind::punctuation && next.text.data() == token_.text.data() + 1) {
        const std::string_view both(token_.text.data(), 2);
        if (precedence(both) != 0) {
            return both;
        }
    }
    return precedence(token_.text) != 0 ? token_.text : std::string_view{};
}

Parser::Constant Parser::primary(int depth) {
    if (depth > kMaxExpressionDepth) {
        fail("a constant expression nested too deeply");
    }
    if (accept('(')) {
        if (token_.is(".s64") || token_.is(".u64")) {
            const bool is_unsigned = token_.is(".u64");
            advance();
            expect(')');
            Constant value = primary(depth + 1);
            if (value.kind != OperandKind::integer) {
                fail("a cast of a constant that is not an integer");
            }
            value.is_unsigned = is_unsigned;
            return value;
        }
        const Constant value = ternary(depth + 1);
        expect(')');
        return value;
    }
    if (accept('+')) {
        return primary(depth + 1);
    }
    if (accept('-')) {
        Constant value = primary(depth + 1);
        if (value.kind == OperandKind::integer) {
            value.bits = 0 - value.bits;
        }
        if (value.kind == OperandKind::real32) {
            value.bits ^= std::uint64_t{1} << 31;
        }
        if (value.kind == OperandKind::real64) {
            value.bits ^= std::uint64_t{1} << 63;
        }
        return value;
    }
    if (token_.is('~') || token_.is('!')) {
        const bool complement = token_.is('~');
        advance();
        Constant value = primary(depth + 1);
        if (value.kind != OperandKind::integer) {
            fail("a bitwise operator on a constant that is not an integer");
        }
        value.bits = complement ? ~value.bits : value.bits == 0 ? 1 : 0;
        return value;
    }
    Constant value;
    switch (token_.kind) {
        case TokenKind::integer: {
            value.kind = OperandKind::integer;
            const char last = token_.text.back();
            value.is_unsigned = last == 'U' || last == 'u' || token_.value >> 63 != 0;
            break;
        }
        case TokenKind::real32: value.kind = OperandKind::real32; break;
        case TokenKind::real64: value.kind = OperandKind::real64; break;
        default:
            if (!token_.is("WARP_SZ")) {
                fail(fmt::format("expected a constant before '{}'", token_.text));
            }
            value.kind = OperandKind::integer;
            token_.value = kWarpLanes;
    }
    value.bits = token_.value;
    advance();
    return value;
}

Parser::Constant Parser::combined(std::string_view name, const Constant& a, const Constant& b) const {
    Constant result;
    result.kind = OperandKind::integer;
    bool answer = false;
    if (a.kind != OperandKind::integer || b.kind != OperandKind::integer) {
        const double x = a.real(), y = b.real();
        if (compares(name, x, y, answer)) {
            result.bits = answer ? 1 : 0;
            return result;
        }
        result.kind = OperandKind::real64;
        if (name == "+") {
            result.bits = std::bit_cast<std::uint64_t>(x + y);
        } else if (name == "-") {
            result.bits = std::bit_cast<std::uint64_t>(x - y);
        } else if (name == "*") {
            result.bits = std::bit_cast<std::uint64_t>(x * y);
        } else if (name == "/") {
            result.bits = std::bit_cast<std::uint64_t>(x / y);
        } else {
            fail(fmt::format("'{}' between constants that are not integers", name));
        }
        return result;
    }
    const bool is_unsigned = a.is_unsigned || b.is_unsigned;
    const std::uint64_t x = a.bits, y = b.bits;
    const auto sx = static_cast<std::int64_t>(x), sy = static_cast<std::int64_t>(y);
    if (is_unsigned ? compares(name, x, y, answer) : compares(name, sx, sy, answer)) {
        result.bits = answer ? 1 : 0;
        return result;
    }
    result.is_unsigned = is_unsigned;
    if (name == "+") {
        result.bits = x + y;
    } else if (name == "-") {
        result.bits = x - y;
    } else if (name == "*") {
        result.bits = x * y;
    } else if (name == "|") {
        result.bits = x | y;
    } else if (name == "^") {
        result.bits = x ^ y;
    } else if (name == "&") {
        result.bits = x & y;
    } else if (name == "<<" || name == ">>") {
        result.is_unsigned = a.is_unsigned;
        const bool beyond = y > 63;
        const std::uint64_t right =
            a.is_unsigned ? (beyond ? 0 : x >> y) : static_cast<std::uint64_t>(sx >> (beyond ? 63 : y));
        result.bits = name == ">>" ? right : beyond ? 0 : x << y;
    } else {
        if (y == 0) {
            fail("a constant expression divides by zero");
        }
        const bool overflows = !is_unsigned && sx == std::numeric_limits<std::int64_t>::min() && sy == -1;
        if (name == "/") {
            result.bits = is_unsigned ? x / y : overflows ? x : static_cast<std::uint64_t>(sx / sy);
        } else {
            result.bits = is_unsigned ? x % y : overflows ? 0 : static_cast<std::uint64_t>(sx % sy);
        }
    }
    return result;
}

// Parses operators of at least the given precedence.
Parser::Constant Parser::binary(int least, int depth) {
    Constant left = primary(depth);
    for (;;) {
        const std::string_view name = operator_ahead();
        const int strength = precedence(name);
        if (strength == 0 || strength < least) {
            return left;
        }
        for (std::size_t i = 0; i < name.size(); ++i) {
            advance();
        }
        left = combined(name, left, binary(strength + 1, depth + 1));
    }
}

Parser::Constant Parser::ternary(int depth) {
    if (depth > kMaxExpressionDepth) {
        fail("a constant expression nested too deeply");
    }
    const Constant condition = binary(1, depth);
    if (!accept('?')) {
        return condition;
    }
    const Constant yes = ternary(depth + 1);
    expect(':');
    const Constant no = ternary(depth + 1);
    return condition.real() != 0 ? yes : no;
}

Operand Parser::constant() {
    const Constant value = ternary(0);
    Operand result;
    result.kind = value.kind;
    result.value = static_cast<std::int64_t>(value.bits);
    return result;
}

// Parses an offset added to a symbol or a register: `sym+4*2`.
std::int64_t Parser::addend() {
    const Constant value = binary(precedence("*"), 0);
    if (value.kind != OperandKind::integer) {
        fail("an offset that is not an integer");
    }
    return static_cast<std::int64_t>(value.bits);
}

}  // namespace gpupool::softgpu::ptx
