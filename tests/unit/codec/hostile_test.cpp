// Bytes that no real client sends: each is refused, and no access goes out of bounds (which AddressSanitizer checks).
#include <cstring>

#include "tests/unit/codec/encode.h"

namespace gpupool::test {
namespace {

// Every prefix, in an allocation of exactly its size.
template <class Call>
void every_prefix_is_refused(const std::vector<std::byte>& whole) {
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        std::vector<std::byte> body(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        body.shrink_to_fit();
        codec::Slots<Call> slots;
        EXPECT_FALSE(slots.read(body)) << Call::kName << " with " << bytes << " of " << whole.size() << " bytes";
    }
    std::vector<std::byte> body = whole;
    codec::Slots<Call> slots;
    EXPECT_TRUE(slots.read(body)) << Call::kName;
}

void put(std::vector<std::byte>& body, std::size_t offset, std::uint64_t value) {
    ASSERT_LE(offset + sizeof value, body.size());
    std::memcpy(body.data() + offset, &value, sizeof value);
}

template <class Call>
bool reads(std::vector<std::byte> body) {
    codec::Slots<Call> slots;
    return slots.read(body);
}

std::vector<std::byte> a_launch(std::size_t argument_bytes) {
    LaunchShape launch{handle<CUfunction>(codec::HandleKind::function, 5), 1, 1, 1, 32, 1, 1, 0, 0, 1};
    CUlaunchAttribute attributes[2]{};
    std::vector<unsigned char> arguments(argument_bytes, 1);
    return command<calls::gpLaunch>(&launch, attributes, 2u, arguments.data(), argument_bytes, CUstream{});
}

constexpr std::size_t kAttributeCountAt = 8 + sizeof(LaunchShape);  // LaunchShape is a multiple of 8

TEST(HostileCommands, TruncatedAtEveryLength) {
    every_prefix_is_refused<calls::gpLaunch>(a_launch(13));
    auto minted = handle<CUfunction>(codec::HandleKind::function, 3);
    ParameterLayout layout[2];
    unsigned count = 0;
    every_prefix_is_refused<calls::gpFunctionResolve>(
        command<calls::gpFunctionResolve>(&minted, CUmodule{}, "a_kernel", layout, 2u, &count, kNoAttributes, 0u));
    CUtensorMap map{};
    every_prefix_is_refused<calls::cuTensorMapReplaceAddress>(command<calls::cuTensorMapReplaceAddress>(&map, nullptr));
    every_prefix_is_refused<calls::cuStreamWaitEvent>(command<calls::cuStreamWaitEvent>(CUstream{}, CUevent{}, 0u));
}

TEST(HostileCommands, CountsThatDisagreeWithTheirArrays) {
    const std::vector<std::byte> launch = a_launch(16);
    const std::size_t count_at = kAttributeCountAt + 8 + 2 * sizeof(CUlaunchAttribute);
    for (const std::uint64_t count : {0ull, 1ull, 3ull, 0xffffffffull}) {
        auto body = launch;
        put(body, count_at, count);
        EXPECT_FALSE(reads<calls::gpLaunch>(body)) << count;
    }
    auto body = launch;
    put(body, count_at + 8 + 8 + 16, 15);  // argument_bytes, behind the arguments
    EXPECT_FALSE(reads<calls::gpLaunch>(body));
    put(body, count_at + 8 + 8 + 16, ~0ull);
    EXPECT_FALSE(reads<calls::gpLaunch>(body));
}

TEST(HostileCommands, HugeElementCounts) {
    const std::vector<std::byte> launch = a_launch(16);
    for (const std::uint64_t elements :
         {std::uint64_t{4}, std::uint64_t{codec::kMaxArrayElements}, std::uint64_t{codec::kMaxArrayElements} + 2,
          std::uint64_t{1} << 32, (std::uint64_t{1} << 58) + 1, ~std::uint64_t{0}}) {
        auto body = launch;
        put(body, kAttributeCountAt, elements);
        EXPECT_FALSE(reads<calls::gpLaunch>(body)) << elements;
    }
}

TEST(HostileCommands, HugeCapacityOfAnOutputArray) {
    auto minted = handle<CUfunction>(codec::HandleKind::function, 3);
    ParameterLayout* const somewhere = reinterpret_cast<ParameterLayout*>(8);
    unsigned count = 0;
    for (const unsigned capacity : {static_cast<unsigned>(codec::kMaxArrayElements) + 1, 0xffffffffu}) {
        EXPECT_FALSE(reads<calls::gpFunctionResolve>(command<calls::gpFunctionResolve>(
            &minted, CUmodule{}, "k", somewhere, capacity, &count, kNoAttributes, 0u)))
            << capacity;
    }
    char* const names = reinterpret_cast<char*>(8);
    std::size_t needed = 0;
    EXPECT_FALSE(
        reads<calls::gpLibraryNames>(command<calls::gpLibraryNames>(CUlibrary{}, names, ~std::size_t{0}, &needed)));
}

TEST(HostileCommands, TextWithoutItsEnd) {
    auto minted = handle<CUfunction>(codec::HandleKind::function, 3);
    ParameterLayout layout[1];
    unsigned count = 0;
    const auto good =
        command<calls::gpFunctionResolve>(&minted, CUmodule{}, "a_kernel_name", layout, 1u, &count, kNoAttributes, 0u);
    ASSERT_TRUE(reads<calls::gpFunctionResolve>(good));
    auto body = good;
    body[8 + 8 + 8 + 13] = std::byte{'x'};  // its NUL
    EXPECT_FALSE(reads<calls::gpFunctionResolve>(body));
    for (const std::uint64_t size : {std::uint64_t{4}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
        body = good;
        put(body, 8 + 8, size);
        EXPECT_FALSE(reads<calls::gpFunctionResolve>(body)) << size;
    }
}

}  // namespace
}  // namespace gpupool::test
