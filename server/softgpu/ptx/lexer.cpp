#include "server/softgpu/ptx/lexer.h"

#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>

namespace gpupool::softgpu::ptx {
namespace {

bool starts_word(char c) noexcept {
    return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

bool continues_word(char c) noexcept {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
}

bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

}  // namespace

void Lexer::skip_blanks() {
    while (position_ < text_.size()) {
        const char c = peek();
        if (c == '\n') {
            ++line_;
            ++position_;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            ++position_;
        } else if (c == '/' && peek(1) == '/') {
            while (position_ < text_.size() && peek() != '\n') {
                ++position_;
            }
        } else if (c == '/' && peek(1) == '*') {
            const auto close = text_.find("*/", position_ + 2);
            if (close == std::string_view::npos) {
                throw SyntaxError{line_, "a comment does not end"};
            }
            for (; position_ < close + 2; ++position_) {
                if (peek() == '\n') {
                    ++line_;
                }
            }
        } else {
            return;
        }
    }
}

void Lexer::skip_line() noexcept {
    while (position_ < text_.size() && peek() != '\n') {
        ++position_;
    }
}

Token Lexer::make(TokenKind kind, std::size_t from) const noexcept {
    return Token{kind, text_.substr(from, position_ - from), 0, line_};
}

Token Lexer::next() {
    skip_blanks();
    const std::size_t from = position_;
    if (from >= text_.size()) {
        return Token{TokenKind::end, {}, 0, line_};
    }
    const char c = peek();
    if (starts_word(c)) {
        ++position_;
        while (continues_word(peek()) || (peek() == '.' && continues_word(peek(1))) ||
               (peek() == ':' && peek(1) == ':' && continues_word(peek(2)))) {
            position_ += peek() == ':' ? 2 : 1;
        }
        return make(TokenKind::word, from);
    }
    if (c == '.' && continues_word(peek(1))) {
        ++position_;
        while (continues_word(peek()) || (peek() == ':' && peek(1) == ':' && continues_word(peek(2)))) {
            position_ += peek() == ':' ? 2 : 1;
        }
        return make(TokenKind::directive, from);
    }
    if (is_digit(c)) {
        return number();
    }
    if (c == '"') {
        ++position_;
        while (position_ < text_.size() && peek() != '"' && peek() != '\n') {
            position_ += peek() == '\\' ? 2 : 1;
        }
        if (peek() != '"') {
            throw SyntaxError{line_, "a string does not end"};
        }
        ++position_;
        return make(TokenKind::string, from);
    }
    ++position_;
    return make(TokenKind::punctuation, from);
}

Token Lexer::number() {
    const std::size_t from = position_;
    int base = 10;
    const char second = static_cast<char>(std::tolower(static_cast<unsigned char>(peek(1))));
    if (peek() == '0' && (second == 'f' || second == 'd') && std::isxdigit(static_cast<unsigned char>(peek(2)))) {
        const std::size_t digits = second == 'f' ? 8 : 16;
        position_ += 2;
        std::uint64_t bits = 0;
        const auto text = text_.substr(position_, digits);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
        if (error != std::errc{} || end != text.data() + digits) {
            throw SyntaxError{line_, "a hexadecimal floating point constant is too short"};
        }
        position_ += digits;
        Token token = make(second == 'f' ? TokenKind::real32 : TokenKind::real64, from);
        token.value = bits;
        return token;
    }
    if (peek() == '0' && (second == 'x' || second == 'b')) {
        base = second == 'x' ? 16 : 2;
        position_ += 2;
    } else {
        std::size_t end = position_;
        while (end < text_.size() && is_digit(text_[end])) {
            ++end;
        }
        const bool real = end < text_.size() && (text_[end] == '.' || text_[end] == 'e' || text_[end] == 'E');
        if (real) {
            const std::string copy(text_.substr(position_, 64));
            char* stop = nullptr;
            const double value = std::strtod(copy.c_str(), &stop);
            position_ += static_cast<std::size_t>(stop - copy.c_str());
            Token token = make(TokenKind::real64, from);
            token.value = std::bit_cast<std::uint64_t>(value);
            return token;
        }
        if (peek() == '0' && end - position_ > 1) {
            base = 8;
        }
    }
    std::uint64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value, base);
    if (error != std::errc{}) {
        throw SyntaxError{line_, "an integer constant is malformed or too large"};
    }
    position_ += static_cast<std::size_t>(end - begin);
    if (peek() == 'U' || peek() == 'u') {
        ++position_;
    }
    Token token = make(TokenKind::integer, from);
    token.value = value;
    return token;
}

}  // namespace gpupool::softgpu::ptx
