// Tokens: making them, and whose a presented one is.
#include "server/policy/tokens.h"

#include <gtest/gtest.h>

namespace gpupool::policy {
namespace {

TEST(Tokens, AreLongAndDiffer) {
    const auto one = make_token(), other = make_token();
    ASSERT_TRUE(one && other);
    EXPECT_EQ(one->size(), 4U + 43U);
    EXPECT_TRUE(one->starts_with("gpt-"));
    EXPECT_NE(*one, *other);
}

TEST(Tokens, AreFoundByTheirHash) {
    const TokenTable table({{hash_token("alice's token"), {Role::tenant, "alice"}, std::nullopt},
                            {hash_token("the operator's"), {Role::administrator, "ops"}, std::nullopt},
                            {hash_token("an old token"), {Role::tenant, "bob"}, 1000}},
                           false);
    EXPECT_FALSE(table.open());
    EXPECT_EQ(table.identify("alice's token", 0), (Identity{Role::tenant, "alice"}));
    EXPECT_EQ(table.identify("the operator's", 0), (Identity{Role::administrator, "ops"}));
    EXPECT_EQ(table.identify("an old token", 999), (Identity{Role::tenant, "bob"}));
    EXPECT_EQ(table.identify("an old token", 1000), std::nullopt);
    EXPECT_EQ(table.identify("", 0), std::nullopt);
    EXPECT_EQ(table.identify("alice's toke", 0), std::nullopt);
    EXPECT_EQ(table.identify(to_string(hash_token("alice's token")), 0), std::nullopt);
}

TEST(Tokens, WithoutAnyTheServerIsOpen) {
    EXPECT_TRUE(TokenTable({}, false).open());
    EXPECT_FALSE(TokenTable({}, true).open());
}

TEST(Tokens, HashesAreThoseOfSha256sum) {
    // printf %s abc | sha256sum
    const auto hash = parse_token_hash("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    ASSERT_TRUE(hash);
    EXPECT_EQ(*hash, hash_token("abc"));
    EXPECT_FALSE(parse_token_hash("ba78"));
    EXPECT_FALSE(parse_token_hash("xa7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    EXPECT_FALSE(parse_token_hash(std::string(63, 'a') + "-"));
}

TEST(Tokens, NamesAreChecked) {
    for (const char* good : {"a", "alice", "team-7", "0f.x_y"}) {
        EXPECT_TRUE(check_name(good)) << good;
    }
    for (const char* bad : {"", "Alice", "-a", ".", "..", "a/b", "a b", "\xc3\xa4"}) {
        EXPECT_FALSE(check_name(bad)) << bad;
    }
    EXPECT_FALSE(check_name(std::string(65, 'a')));
}

}  // namespace
}  // namespace gpupool::policy
