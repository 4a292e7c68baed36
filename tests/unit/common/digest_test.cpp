#include "common/digest.h"

#include <gtest/gtest.h>

#include <string_view>

namespace gpupool {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

// FIPS 180-4's examples.
TEST(Digest, IsSha256) {
    EXPECT_EQ(to_string(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(to_string(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, DoesNotDependOnTheCuts) {
    Digester pieces;
    pieces.add(bytes_of("a"));
    pieces.add(bytes_of("bc"));
    EXPECT_EQ(pieces.finish(), sha256(bytes_of("abc")));
}

}  // namespace
}  // namespace gpupool
