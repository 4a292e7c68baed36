// Round trips of calls whose parameters have each shape: the worker decodes what the client encoded.
#include <cstring>

#include "tests/unit/codec/encode.h"

namespace gpupool::test {
namespace {

TEST(Commands, ValuesAndHandles) {
    using Call = calls::cuStreamWaitEvent;
    const auto stream = handle<CUstream>(codec::HandleKind::stream, 7);
    const auto event = handle<CUevent>(codec::HandleKind::event, 9);
    auto body = command<Call>(stream, event, 3u);
    EXPECT_EQ(body.size(), 24u);
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(slots.at<Call::hStream>().value, stream);
    EXPECT_EQ(slots.at<Call::hEvent>().value, event);
    EXPECT_EQ(slots.at<Call::Flags>().value, 3u);
}

TEST(Commands, StructsAndArraysByValueCount) {
    using Call = calls::gpLaunch;
    LaunchShape launch{handle<CUfunction>(codec::HandleKind::function, 5), 1, 2, 3, 4, 5, 6, 7, 0, 1};
    CUlaunchAttribute attributes[3]{};
    for (unsigned i = 0; i < 3; ++i) {
        attributes[i].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
        attributes[i].value.priority = static_cast<int>(i) - 1;
    }
    unsigned char arguments[13];
    for (unsigned char i = 0; i < sizeof arguments; ++i) {
        arguments[i] = static_cast<unsigned char>(i * 17);
    }
    auto body = command<Call>(&launch, attributes, 3u, arguments, sizeof arguments, CUstream{});
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    ASSERT_NE(slots.at<Call::launch>().value, nullptr);
    EXPECT_EQ(std::memcmp(slots.at<Call::launch>().value, &launch, sizeof launch), 0);
    ASSERT_EQ(slots.at<Call::attributes>().object.size(), 3u);
    EXPECT_EQ(std::memcmp(slots.at<Call::attributes>().value, attributes, sizeof attributes), 0);
    ASSERT_EQ(slots.at<Call::arguments>().object.size(), sizeof arguments);
    EXPECT_EQ(std::memcmp(slots.at<Call::arguments>().value, arguments, sizeof arguments), 0);
}

TEST(Commands, NullPointersStayNull) {
    using Call = calls::gpLaunch;
    auto body = command<Call>(nullptr, nullptr, 0u, nullptr, std::size_t{0}, CUstream{});
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(slots.at<Call::launch>().value, nullptr);
    EXPECT_EQ(slots.at<Call::attributes>().value, nullptr);
    EXPECT_EQ(slots.at<Call::arguments>().value, nullptr);

    using Global = calls::cuLibraryGetGlobal;
    body = command<Global>(nullptr, nullptr, CUlibrary{}, nullptr);
    codec::Slots<Global> global;
    ASSERT_TRUE(global.read(body));
    EXPECT_EQ(global.at<Global::dptr>().value, nullptr);
    EXPECT_EQ(global.at<Global::bytes>().value, nullptr);
    EXPECT_EQ(global.at<Global::name>().value, nullptr);
}

TEST(Commands, EmptyArrayIsNotANullArray) {
    using Call = calls::gpLaunch;
    const unsigned char nothing[1] = {};
    auto body = command<Call>(nullptr, nullptr, 0u, nothing, std::size_t{0}, CUstream{});
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_NE(slots.at<Call::arguments>().value, nullptr);
    EXPECT_TRUE(slots.at<Call::arguments>().object.empty());
    EXPECT_EQ(slots.at<Call::attributes>().value, nullptr);
}

TEST(Commands, TextOfEveryLengthAroundTheAlignment) {
    using Call = calls::gpFunctionResolve;
    for (std::size_t length = 0; length < 20; ++length) {
        const std::string name(length, 'k');
        auto minted = handle<CUfunction>(codec::HandleKind::function, 3);
        ParameterLayout layout[2];
        unsigned count = 0;
        auto body = command<Call>(&minted, handle<CUmodule>(codec::HandleKind::module, 2), name.c_str(), layout, 2u,
                                  &count, kNoAttributes, 0u);
        codec::Slots<Call> slots;
        ASSERT_TRUE(slots.read(body));
        EXPECT_EQ(slots.at<Call::name>().value, name);
        EXPECT_EQ(slots.at<Call::function>().minted, codec::to_wire(minted));
        ASSERT_NE(slots.at<Call::layout>().value, nullptr);
        EXPECT_EQ(slots.at<Call::layout>().object.size(), 3u);  // one more than requested, so that it is never empty
        EXPECT_NE(slots.at<Call::count>().value, nullptr);
    }
}

TEST(Commands, CreatesCarriesTheMintedHandle) {
    using Call = calls::cuStreamCreate;
    auto minted = handle<CUstream>(codec::HandleKind::stream, 1234);
    auto body = command<Call>(&minted, 1u);
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(slots.at<Call::phStream>().minted, codec::to_wire(minted));
    EXPECT_EQ(slots.at<Call::phStream>().value, &slots.at<Call::phStream>().object);
    body = command<Call>(nullptr, 1u);
    codec::Slots<Call> none;
    ASSERT_TRUE(none.read(body));
    EXPECT_EQ(none.at<Call::phStream>().value, nullptr);
}

TEST(Commands, InOutAndAddresses) {
    using Call = calls::cuTensorMapReplaceAddress;
    CUtensorMap map;
    std::memset(&map, 0x5a, sizeof map);
    auto* const address = reinterpret_cast<void*>(0x600000001000);
    auto body = command<Call>(&map, address);
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(std::memcmp(slots.at<Call::tensorMap>().value, &map, sizeof map), 0);
    EXPECT_EQ(slots.at<Call::globalAddress>().value, address);
}

TEST(Commands, ArraysWithAnAdjustedCount) {
    using Call = calls::cuTensorMapEncodeTiled;
    CUtensorMap map;
    const cuuint64_t dimensions[3] = {64, 32, 16}, strides[2] = {256, 8192};
    const cuuint32_t box[3] = {8, 8, 8}, steps[3] = {1, 1, 1};
    auto body = command<Call>(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3u, nullptr, dimensions, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    codec::Slots<Call> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(slots.at<Call::globalDim>().object, std::vector<cuuint64_t>(dimensions, dimensions + 3));
    EXPECT_EQ(slots.at<Call::globalStrides>().object, std::vector<cuuint64_t>(strides, strides + 2));
    EXPECT_EQ(slots.at<Call::elementStrides>().object, std::vector<cuuint32_t>(steps, steps + 3));
    // A count of 0 with an adjustment of -1 means no elements; it must not wrap around.
    body = command<Call>(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 0u, nullptr, dimensions, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    codec::Slots<Call> none;
    ASSERT_TRUE(none.read(body));
    EXPECT_TRUE(none.at<Call::globalStrides>().object.empty());
}

// No remote call of the table has a count behind a pointer today; the codec supports them.
struct CountedByPointer {
    using Function = CUresult (*)(const int* values, const unsigned* count, unsigned char* out);
    static constexpr std::string_view kName = "CountedByPointer";
    static constexpr int kArity = 3;
    static constexpr auto kRules = calls::rule_set(calls::in_array(0, 1), calls::in(1), calls::out_array(2, 1));
};

TEST(Commands, CountsBehindAPointer) {
    const int values[] = {3, 1, 4};
    const unsigned count = 3;
    unsigned char out[3];
    auto body = command<CountedByPointer>(values, &count, out);
    codec::Slots<CountedByPointer> slots;
    ASSERT_TRUE(slots.read(body));
    EXPECT_EQ(slots.at<0>().object, std::vector<int>(values, values + 3));
    EXPECT_EQ(*slots.at<1>().value, 3u);
    EXPECT_EQ(slots.at<2>().object.size(), 4u);
    // Without a count there are no elements, even if the pointer is not null.
    body = command<CountedByPointer>(values, nullptr, out);
    codec::Slots<CountedByPointer> none;
    ASSERT_TRUE(none.read(body));
    EXPECT_TRUE(none.at<0>().object.empty());
    EXPECT_EQ(none.at<1>().value, nullptr);
    EXPECT_EQ(none.at<2>().object.size(), 1u);
}

TEST(Commands, PaddingIsZero) {
    using Call = calls::gpFunctionResolve;
    auto minted = handle<CUfunction>(codec::HandleKind::function, 3);
    std::vector<std::byte> places(256, std::byte{0xff});
    const auto module = handle<CUmodule>(codec::HandleKind::module, 2);
    const char* name = "k";
    ParameterLayout* layout = nullptr;
    const unsigned capacity = 0;
    unsigned* count = nullptr;
    int* attributes = nullptr;
    const unsigned attribute_count = 0;
    CUfunction* function = &minted;
    const void* const addresses[] = {&function,   &module,          &name,  &layout, &capacity, &count,
                                     &attributes, &attribute_count, nullptr};
    codec::Writer out(places.data());
    codec::write_command<Call>(out, addresses);
    EXPECT_EQ(places[8 + 8 + 8 + 1], std::byte{0});  // the padding behind the name's NUL contains no heap data
    for (std::size_t i = 2; i < 8; ++i) {
        EXPECT_EQ(places[8 + 8 + 8 + i], std::byte{0}) << i;
    }
    EXPECT_EQ(places[8 + 8 + 8 + 8 + 8 + 4], std::byte{0});  // behind the 4-byte capacity
}

}  // namespace
}  // namespace gpupool::test
