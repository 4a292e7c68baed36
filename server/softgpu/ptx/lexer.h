// Splits PTX text into tokens.
//
// Ownership: tokens point into the text. Threads: none. Errors: throws LexError, internal to the ptx folder; parse()
//   turns it into a Result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpupool::softgpu::ptx {

struct SyntaxError {
    std::uint32_t line;
    std::string message;
};

// Thrown for text that is probably PTX of a later version.
struct LaterVersion {
    std::string message;
};

enum class TokenKind : std::uint8_t { end, word, directive, integer, real32, real64, string, punctuation };

struct Token {
    TokenKind kind = TokenKind::end;
    std::string_view text;    // with the dot if it is a directive
    std::uint64_t value = 0;  // of a number: its bits
    std::uint32_t line = 0;

    bool is(char c) const noexcept { return kind == TokenKind::punctuation && text.size() == 1 && text[0] == c; }
    bool is(std::string_view word) const noexcept {
        return (kind == TokenKind::word || kind == TokenKind::directive) && text == word;
    }
};

class Lexer {
  public:
    explicit Lexer(std::string_view text) noexcept : text_(text) {}

    // A word includes its dotted suffixes: `ld.global.v4.f32`, `%tid.x`, `.L1::evict_last`.
    Token next();
    // Skips the rest of the line, since `.loc` and `.file` have no semicolon.
    void skip_line() noexcept;

  private:
    void skip_blanks();
    Token number();
    Token make(TokenKind kind, std::size_t from) const noexcept;
    char peek(std::size_t ahead = 0) const noexcept {
        return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
    }

    std::string_view text_;
    std::size_t position_ = 0;
    std::uint32_t line_ = 1;
};

}  // namespace gpupool::softgpu::ptx
