#include "server/policy/tokens.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <span>

namespace gpupool::policy {
namespace {

constexpr std::size_t kRandomBytes = 32;
constexpr std::string_view kTokenPrefix = "gpt-";

// Base64 with the alphabet for addresses and file names (RFC 4648, section 5), without padding.
std::string base64_text(std::span<const unsigned char> bytes) {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string text;
    std::uint32_t bits = 0;
    int count = 0;
    for (const unsigned char byte : bytes) {
        bits = bits << 8 | byte;
        for (count += 8; count >= 6; count -= 6) {
            text += kAlphabet[bits >> (count - 6) & 63];
        }
    }
    if (count > 0) {
        text += kAlphabet[bits << (6 - count) & 63];
    }
    return text;
}

// Compares all bytes, wherever the first difference is.
bool equal_digests(const Digest& one, const Digest& other) {
    unsigned difference = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
        difference |= std::to_integer<unsigned>(one[i] ^ other[i]);
    }
    return difference == 0;
}

}  // namespace

Status check_name(std::string_view name) {
    const auto letter_or_digit = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    if (name.empty() || name.size() > kMaxNameBytes || !letter_or_digit(name.front()) ||
        !std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter_or_digit(c) || c == '-' || c == '_' || c == '.'; })) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("a name must consist of 1 to {} small letters, digits, '-', '_' and '.', and begin "
                                 "with a letter or digit",
                                 kMaxNameBytes)};
    }
    return {};
}

Result<std::string> make_token() {
    std::array<unsigned char, kRandomBytes> bytes{};
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
        return system_error("cannot make a random token", errno);
    }
    return std::string(kTokenPrefix) + base64_text(bytes);
}

Digest hash_token(std::string_view token) {
    return sha256(std::as_bytes(std::span(token.data(), token.size())));
}

Result<Digest> parse_token_hash(std::string_view text) {
    Digest digest{};
    bool good = text.size() == 2 * digest.size();
    for (std::size_t i = 0; good && i < digest.size(); ++i) {
        unsigned value = 0;
        const char* const at = text.data() + 2 * i;
        const auto read = std::from_chars(at, at + 2, value, 16);
        good = read.ec == std::errc() && read.ptr == at + 2;
        digest[i] = static_cast<std::byte>(value);
    }
    if (!good) {
        return Error{ErrorCode::invalid_input,
                     "a token's hash must be 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints"};
    }
    return digest;
}

std::string tenant_of_plain_token(std::string_view token) {
    Digester digester;
    for (const std::string_view part : {std::string_view("gpupool tenant\n"), token}) {
        digester.add(std::as_bytes(std::span(part.data(), part.size())));
    }
    constexpr std::size_t kDigits = 32;
    return to_string(digester.finish()).substr(0, kDigits);
}

std::optional<Identity> TokenTable::identify(std::string_view token, std::int64_t now_ms) const {
    const Digest hash = hash_token(token);
    const KnownToken* found = nullptr;
    for (const KnownToken& known : tokens_) {
        const bool valid = !known.ends_ms || now_ms < *known.ends_ms;
        found = equal_digests(hash, known.hash) && valid ? &known : found;
    }
    return found == nullptr ? std::nullopt : std::optional(found->whose);
}

}  // namespace gpupool::policy
