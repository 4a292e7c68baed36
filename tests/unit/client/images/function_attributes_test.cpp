// The attributes that the client keeps of a function. Nothing here may ask a server: there is no session.
#include "client/core/images/function_attributes.h"

#include <gtest/gtest.h>

namespace gpupool::test {
namespace {

using client::FunctionAttributes;
using OnDevice = FunctionAttributes::OnDevice;

constexpr CUfunction kFunction = nullptr;
constexpr auto kRegisters = CU_FUNC_ATTRIBUTE_NUM_REGS;

OnDevice::Values with_registers(int count) {
    OnDevice::Values values = OnDevice::unknown();
    values[kRegisters] = count;
    return values;
}

TEST(FunctionAttributes, ExistForEveryPossibleDevice) {
    FunctionAttributes attributes;
    constexpr auto kMost = static_cast<CUdevice>(FunctionAttributes::kMaxDevices);
    EXPECT_EQ(attributes.on(-1), nullptr);
    EXPECT_EQ(attributes.on(kMost), nullptr);
    OnDevice* const last = attributes.on(kMost - 1);
    ASSERT_NE(last, nullptr);
    EXPECT_EQ(attributes.on(kMost - 1), last);
    EXPECT_NE(attributes.on(0), last);
    attributes.learn(kMost, with_registers(1));  // of a device that cannot exist: ignored
}

TEST(FunctionAttributes, ThatAReplyCarriedAreKnown) {
    FunctionAttributes attributes;
    attributes.learn(1, with_registers(40));
    OnDevice& here = *attributes.on(1);
    EXPECT_EQ(here.load(kFunction, 1), CUDA_SUCCESS);
    EXPECT_EQ(here.get(kRegisters), 40);
    EXPECT_EQ(here.get(CU_FUNC_ATTRIBUTE_PTX_VERSION), kUnknownAttribute);
}

TEST(FunctionAttributes, AreLearntOnce) {
    FunctionAttributes attributes;
    attributes.learn(0, with_registers(40));
    OnDevice& here = *attributes.on(0);
    here.set(kRegisters, 41);
    attributes.learn(0, with_registers(42));
    EXPECT_EQ(here.get(kRegisters), 41) << "a late reply must not undo what the program set";
    here.forget();
    attributes.learn(0, OnDevice::unknown());
    EXPECT_EQ(here.get(kRegisters), 41) << "nothing was reported";
    attributes.learn(0, with_registers(42));
    EXPECT_EQ(here.get(kRegisters), 42);
}

TEST(FunctionAttributes, AnswersEndWithTheAttributesThatTheyDependOn) {
    OnDevice here;
    std::size_t answer = 0;
    EXPECT_FALSE(here.find_answer("blocks", answer));
    here.keep_answer("blocks", 8);
    EXPECT_TRUE(here.find_answer("blocks", answer));
    EXPECT_EQ(answer, 8u);
    EXPECT_FALSE(here.find_answer("cluster", answer));
    here.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536);
    EXPECT_FALSE(here.find_answer("blocks", answer));
    here.keep_answer("blocks", 4);
    here.forget();
    EXPECT_FALSE(here.find_answer("blocks", answer));
}

}  // namespace
}  // namespace gpupool::test
