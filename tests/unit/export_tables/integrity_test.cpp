// MD2 by RFC 1319's vectors, HMAC by RFC 2104's structure, and the integrity check's answer by its layout.
#include "protocol/export_tables/integrity.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include "tests/unit/export_tables/fake_view.h"

namespace gpupool::client::export_tables::test {
namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string hex(std::span<const std::uint8_t> bytes) {
    std::string text;
    for (const std::uint8_t byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

std::string md2(std::string_view text) {
    Md2 hash;
    hash.add(bytes_of(text));
    return hex(hash.finish());
}

TEST(Md2, Rfc1319Vectors) {
    EXPECT_EQ(md2(""), "8350e5a3e24c153df2275c9f80692773");
    EXPECT_EQ(md2("a"), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
    EXPECT_EQ(md2("abc"), "da853b0d3f88d99b30283a69e6ded6bb");
    EXPECT_EQ(md2("message digest"), "ab4f496bfb2a530b219ff33031fe06b0");
    EXPECT_EQ(md2("abcdefghijklmnopqrstuvwxyz"), "4e8ddff3650292ab5a4108c3aa47940b");
    EXPECT_EQ(md2("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
              "da33def2a42df13975352846c30338cd");
    EXPECT_EQ(md2("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
              "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST(Md2, DoesNotDependOnTheChunks) {
    const std::string text(100, 'x');
    Md2 hash;
    for (std::size_t at = 0; at < text.size(); at += 7) {
        hash.add(bytes_of(std::string_view(text).substr(at, 7)));
    }
    EXPECT_EQ(hex(hash.finish()), md2(text));
}

// H(K ^ opad, H(K ^ ipad, text)), written out.
TEST(HmacMd2, HasRfc2104Structure) {
    const std::string key = "sixteen byte key";
    const std::string message = "what do ya want for nothing?";
    std::string inner;
    std::string outer;
    for (const char c : key) {
        inner += static_cast<char>(c ^ 0x36);
        outer += static_cast<char>(c ^ 0x5C);
    }
    Md2 first;
    first.add(bytes_of(inner + message));
    const auto digest = first.finish();
    outer.append(digest.begin(), digest.end());
    EXPECT_EQ(hex(hmac_md2(bytes_of(key), bytes_of(message))), md2(outer));
}

TEST(HmacMd2, PadsShortKeysAndHashesLongOnes) {
    const std::string message = "message";
    EXPECT_EQ(hmac_md2(bytes_of("short"), bytes_of(message)),
              hmac_md2(bytes_of(std::string("short") + std::string(11, '\0')), bytes_of(message)));
    const std::string long_key(40, 'k');
    Md2 hash;
    hash.add(bytes_of(long_key));
    EXPECT_EQ(hmac_md2(bytes_of(long_key), bytes_of(message)), hmac_md2(hash.finish(), bytes_of(message)));
}

TEST(IntegrityAnswer, IsFixedForTheFirstTwoVersions) {
    for (std::uint32_t version : {13000u, 12090u, 11080u}) {
        EXPECT_EQ(hex(integrity_answer({}, {}, version, 1)), "5c67cb031c184133e8d14c1faa83d38e");
        EXPECT_EQ(hex(integrity_answer({}, {}, version + 1, 1)), "5c67cb031c184118e8d14c1faa83d38e");
    }
}

std::vector<DeviceIdentity> two_devices() {
    std::vector<DeviceIdentity> devices(2);
    std::iota(devices[0].uuid.begin(), devices[0].uuid.end(), std::uint8_t{0});
    std::iota(devices[1].uuid.begin(), devices[1].uuid.end(), std::uint8_t{16});
    devices[0].pci_bus = 0x65;
    devices[0].pci_device = 1;
    devices[1].pci_domain = 1;
    devices[1].pci_bus = 0x66;
    devices[1].pci_device = 2;
    return devices;
}

// The expected value was computed independently of this code, from the documented layout.
TEST(IntegrityAnswer, IsAKeyedHashOfTheFacts) {
    IntegrityFacts facts;
    facts.driver_version = 13000;
    facts.process = 4242;
    facts.thread = 0x89ABCDEF;
    facts.cudart_table = 0x1111222233334444;
    facts.integrity_table = 0x5555666677778888;
    facts.integrity_function = 0x99990000AAAABBBB;
    EXPECT_EQ(hex(integrity_answer(facts, two_devices(), 13002, 1700000000)), "d548051d3b2e6c7c069c4e865f36e5ce");
}

TEST(IntegrityAnswer, DependsOnEveryFact) {
    const auto devices = two_devices();
    const IntegrityFacts facts;
    const auto plain = integrity_answer(facts, devices, 13002, 5);
    std::vector<Md2Digest> others;
    for (std::size_t i = 0; i < sizeof facts; ++i) {
        if (i >= 12 && i < 16) {
            continue;  // padding
        }
        IntegrityFacts changed = facts;
        reinterpret_cast<std::uint8_t*>(&changed)[i] ^= 1;
        others.push_back(integrity_answer(changed, devices, 13002, 5));
    }
    others.push_back(integrity_answer(facts, devices, 13003, 5));
    others.push_back(integrity_answer(facts, devices, 13002, 6));
    others.push_back(integrity_answer(facts, std::span(devices).first(1), 13002, 5));
    for (const auto& other : others) {
        EXPECT_NE(other, plain);
    }
}

using Answer = CUresult(std::uint32_t, std::uint64_t, std::uint8_t*);

Md2Digest expected_here(const FakeView& client, std::uint32_t version) {
    IntegrityFacts facts;
    facts.driver_version = 13000;
    facts.process = static_cast<std::uint32_t>(::getpid());
    facts.thread = static_cast<std::uint32_t>(::pthread_self());
    facts.cudart_table = reinterpret_cast<std::uint64_t>(table(kCudartInterfaceId));
    facts.integrity_table = reinterpret_cast<std::uint64_t>(table(kIntegrityCheckId));
    facts.integrity_function = reinterpret_cast<std::uint64_t>(table(kIntegrityCheckId)[1]);
    return integrity_answer(facts, client.identities, version, 77);
}

TEST(IntegrityCheck, CoversThisProcessThreadAndTables) {
    FakeView client;
    client.identities = two_devices();
    auto* check = function<Answer>(kIntegrityCheckId, 1);
    Md2Digest here;
    ASSERT_EQ(check(13002, 77, here.data()), CUDA_SUCCESS);
    EXPECT_EQ(here, expected_here(client, 13002));
    std::thread([&] {
        Md2Digest there;
        ASSERT_EQ(check(13002, 77, there.data()), CUDA_SUCCESS);
        EXPECT_EQ(there, expected_here(client, 13002));
        EXPECT_NE(there, here);
    }).join();
    EXPECT_EQ(check(13002, 77, nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gpupool::client::export_tables::test
