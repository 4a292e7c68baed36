#include "server/softgpu/ptx/parser.h"

#include <fmt/format.h>

#include "server/softgpu/ptx/parser_impl.h"

namespace gpupool::softgpu::ptx {

namespace {
constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;
}

Result<Module> parse(std::string_view text) {
    if (text.size() > kMaxTextBytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("PTX of {} bytes; at most {} are accepted", text.size(), kMaxTextBytes)};
    }
    try {
        return Parser(text).run();
    } catch (const LaterVersion& error) {
        return Error{ErrorCode::unsupported, error.message};
    } catch (const SyntaxError& error) {
        return Error{ErrorCode::invalid_input, fmt::format("line {}: {}", error.line, error.message)};
    }
}

Module Parser::run() {
    while (token_.kind != TokenKind::end) {
        module_statement();
    }
    if (module_.version_major == 0) {
        fail("no .version directive: this is not PTX");
    }
    return std::move(module_);
}

void Parser::advance() {
    token_ = lexer_.next();
    while (token_.is(".loc") || token_.is(".file")) {
        lexer_.skip_line();
        token_ = lexer_.next();
    }
}

bool Parser::accept(char c) {
    if (!token_.is(c)) {
        return false;
    }
    advance();
    return true;
}

bool Parser::accept(std::string_view word) {
    if (!token_.is(word)) {
        return false;
    }
    advance();
    return true;
}

void Parser::expect(char c) {
    if (!accept(c)) {
        fail(fmt::format("expected '{}' before '{}'", c, token_.text));
    }
}

std::string_view Parser::expect_word(const char* what) {
    if (token_.kind != TokenKind::word) {
        fail(fmt::format("expected {} before '{}'", what, token_.text));
    }
    const auto text = token_.text;
    advance();
    return text;
}

std::uint64_t Parser::expect_integer(const char* what) {
    if (token_.kind != TokenKind::integer) {
        fail(fmt::format("expected {} before '{}'", what, token_.text));
    }
    const auto value = token_.value;
    advance();
    return value;
}

void Parser::fail(std::string message) const {
    throw SyntaxError{token_.line, std::move(message)};
}

}  // namespace gpupool::softgpu::ptx
