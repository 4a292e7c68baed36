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

TEST(Digest, DoesNotDependOnTheChunks) {
    Digester pieces;
    pieces.add(bytes_of("a"));
    pieces.add(bytes_of("bc"));
    EXPECT_EQ(pieces.finish(), sha256(bytes_of("abc")));
}

// Long enough for the processor's SHA instructions, where it has them. Expected values from sha256sum.
TEST(Digest, LongTexts) {
    const auto bytes = [](std::size_t count) {
        std::string text(count, '\0');
        for (std::size_t i = 0; i < count; ++i) {
            text[i] = static_cast<char>(i * 7 + i / 251);
        }
        return text;
    };
    EXPECT_EQ(to_string(sha256(bytes_of(bytes(128)))),
              "54c9eb041badfd7064645067b107661fed6113197ce2dd066ba69618abd3732f");
    EXPECT_EQ(to_string(sha256(bytes_of(bytes(1000)))),
              "1d9d471927b6f0cbc77aed8969dfc6ef43ff35fdcdd8aa0032630c0063ff95a5");
    EXPECT_EQ(to_string(sha256(bytes_of(bytes(100000)))),
              "6b4e3f3d1dee15db72c519f5962bad253dfc7d4183d7e30e656259ce1eeab007");
    const std::string text = bytes(100000);
    for (const std::size_t cut : {1u, 63u, 64u, 65u, 127u, 200u, 5000u}) {
        Digester pieces;
        for (std::size_t at = 0; at < text.size(); at += cut) {
            pieces.add(bytes_of(std::string_view(text).substr(at, cut)));
        }
        EXPECT_EQ(to_string(pieces.finish()), to_string(sha256(bytes_of(text)))) << cut;
    }
}

}  // namespace
}  // namespace gpupool
