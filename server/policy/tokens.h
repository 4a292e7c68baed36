// Tokens: how the server makes them, keeps them as hashes, and finds whose a presented one is.
//
// A token that the server makes is 32 random bytes as text. Only its SHA-256 is kept. No salt and no slow hash: a token
// cannot be guessed, so its hash gives nothing away. (An operator's own text in `auth.tokens` may be weaker. It lies in
// the file in clear anyway.)
//
// Ownership: values. Threads: any. Errors: Result. Times: milliseconds since 1970.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/digest.h"
#include "common/result.h"

namespace gpupool::policy {

enum class Role : std::uint8_t {
    anonymous,      // any client of a server without tokens
    tenant,         // uses GPUs; sees what is its own
    administrator,  // changes and sees everything; starts no sessions
};

struct Identity {
    Role role = Role::anonymous;
    std::string name;  // the tenant's or the administrator's

    bool operator==(const Identity&) const = default;
};

// The tenant of all clients of a server without tokens.
inline constexpr std::string_view kAnonymous = "anonymous";

inline constexpr std::size_t kMinTokenBytes = 8;
inline constexpr std::size_t kMaxTokenBytes = 4096;
inline constexpr std::size_t kMaxTokens = 10000;  // of a server, in all
inline constexpr std::size_t kMaxNameBytes = 64;

// A tenant's or administrator's name: up to kMaxNameBytes small letters, digits, '-', '_' and '.', the first one a
// letter or digit. It is a folder's name as well (of kept code images).
Status check_name(std::string_view name);

// "gpt-" and 43 letters, digits, '-' or '_'.
Result<std::string> make_token();
Digest hash_token(std::string_view token);
// 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints.
Result<Digest> parse_token_hash(std::string_view text);
// The name of the tenant that a token of `auth.tokens` or `auth.token_file` stands for: 32 hexadecimal digits, which
// do not reveal the token.
std::string tenant_of_plain_token(std::string_view token);

struct KnownToken {
    Digest hash{};
    Identity whose;
    std::optional<std::int64_t> ends_ms;  // valid until then; unset: until it is revoked
};

class TokenTable {
  public:
    TokenTable() = default;
    // `closed`: tokens are asked for even if there is none.
    TokenTable(std::vector<KnownToken> tokens, bool closed) : tokens_(std::move(tokens)), closed_(closed) {}

    // Anyone may connect, as kAnonymous.
    [[nodiscard]] bool open() const { return !closed_ && tokens_.empty(); }
    // The token's owner; nullopt: it is unknown, or no longer valid. Takes the same time for every token of one length.
    [[nodiscard]] std::optional<Identity> identify(std::string_view token, std::int64_t now_ms) const;

  private:
    std::vector<KnownToken> tokens_;
    bool closed_ = false;
};

}  // namespace gpupool::policy
